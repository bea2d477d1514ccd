"""Values of a row as Python has them, and the fields and metadata that they become."""

from collections.abc import Mapping
from typing import Any

from loader.dataset.columnar.choices import Options, ReadSample
from loader.dataset.columnar.column_names import check_text, field_name, key_of_value, metadata_name, row_key
from loader.dataset.columnar.field_values import encoded
from loader.errors import InvalidSample


def sample_of(values: Mapping[str, Any], options: Options, object_key: str, row: int) -> ReadSample:
    """Return the sample of a row: lists and objects are fields, numbers and texts metadata, unless options say.

    Raises: InvalidSample, with object, row and column.
    """
    where = f"{object_key}, row {row}"
    key = row_key(object_key, row)
    if options.key is not None:
        key = key_of_value(values.get(options.key), options.key, where)
    fields, metadata = dict[str, bytes](), dict[str, Any]()
    for column, value in values.items():
        if value is None or column == options.key or column in options.without:
            continue
        if column in options.fields or isinstance(value, list | dict):
            word = options.fields.get(column) or ("txt" if isinstance(value, str) else "json")
            into: dict[str, Any] = fields
            made: Any
            name, made = field_name(column, word), encoded(value, word, column, where)
        else:
            into, name = metadata, metadata_name(column)
            made = check_text(value, column, where) if isinstance(value, str) else value
        if name in into:
            raise InvalidSample(f"{where}: two columns would both be {name!r}; leave one out (--without)")
        into[name] = made
    return ReadSample(key, fields, metadata)
