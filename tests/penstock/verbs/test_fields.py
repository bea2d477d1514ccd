"""A version with several kinds of samples, of which no field is common to all: order, bench and show."""

import pytest

import loader


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """demo@2: 5 samples with 'jpg' and 'cls', 3 with 'txt'."""
    root = loader.Root(tmp_path_factory.mktemp("kinds") / "root")
    with root.write("demo", group="image", part_samples=2) as writer:
        for i in range(5):
            writer.add(f"i{i}", {"jpg": b"x" * 9, "cls": i})
    with root.write("demo", group="text") as writer:
        for i in range(3):
            writer.add(f"t{i}", {"txt": "words"})
    return root.url


ORDER = ("order", "demo@2", "--step", "0", "--batch", "3")


@pytest.mark.parametrize("verb", [ORDER, ("bench", "demo@2")], ids=" ".join)
def test_it_says_which_option_selects(cli, kinds, verb):
    run = cli(*verb, root=kinds)
    assert (run.code, run.out) == (2, "")
    assert run.err.splitlines() == [
        "penstock: FieldNotFound: demo@2 has samples of 2 kinds, and no field that all of them have; add the fields of "
        "one kind:",
        "  --fields cls,jpg  # 5 of 8 samples",
        "  --fields txt  # 3 of 8 samples",
    ]
    assert "where_present" not in run.err


def test_option_can_be_pasted(cli, kinds):
    offered = [line.split("#")[0].split() for line in cli(*ORDER, root=kinds).err.splitlines()[1:]]
    keys = [cli(*ORDER, *option, root=kinds).out.split()[2::3] for option in offered]
    assert [[key[0] for key in some] for some in keys] == [["i"] * 3, ["t"] * 3]


def test_order_is_that_of_the_training(cli, kinds):
    view = loader.Root(kinds).open("demo@2").select("jpg", where_present=True)
    plan = loader.plan({"demo": view}, seed=5, global_batch=3, allow_repeats=True)
    body = cli(*ORDER, "--seed", "5", "--fields", "jpg", "--json", root=kinds).json
    assert [key for _, _, key in body["ids"]] == [key for _, key in plan.batch_ids(0)]
    assert body["plan"] == plan.hash


def test_fields_of_different_kinds(cli, kinds):
    run = cli(*ORDER, "--fields", "jpg,txt", root=kinds)
    assert run.code == 2
    assert (
        "no sample of demo@2 has all of jpg, txt; add the fields of one kind:\n  --fields cls,jpg" in run.err
    )
    unknown = cli(*ORDER, "--fields", "nope", root=kinds)
    assert "demo@2 has no field 'nope'; it has cls, jpg, txt" in unknown.err


def test_bench_of_one_kind(cli, kinds):
    run = cli("bench", "demo@2", "--fields", "txt", "--batch", "2", "--seconds", "0.05", "--json", root=kinds)
    assert (run.code, run.json["fields"], run.json["n_samples"]) == (0, ["txt"], 3)


def test_show_lists_them(cli, kinds):
    out = cli("show", "demo@2", root=kinds).out
    assert (
        f"\n\n{'order, bench: select one kind by':<40} {'samples':>10}\n"
        f"{'--fields cls,jpg':<40} {5:>10}\n{'--fields txt':<40} {3:>10}\n\n"
    ) in out
    assert cli("show", "demo@2", "--json", root=kinds).json["kinds"] == [
        {"fields": ["cls", "jpg"], "samples": 5},
        {"fields": ["txt"], "samples": 3},
    ]
    assert "select one kind" not in cli("show", "demo@1", root=kinds).out


def test_kind_of_which_every_sample_was_excluded(cli, tmp_path):
    root = loader.Root(tmp_path / "root")
    for group, keys, field in (("image", "ab", "cls"), ("text", "cd", "txt")):
        with root.write("demo", group=group) as writer:
            for key in keys:
                writer.add(key, {field: 1 if field == "cls" else "x"})
    root.exclude("demo", ["c", "d"], reason="blank")
    run = cli("order", "demo@3", "--step", "0", "--batch", "2", root=root.url)
    assert (run.code, sorted(run.out.split()[2::3])) == (0, ["a", "b"])


def test_fields_in_part_of_the_samples(cli, sample_root):
    root, _ = sample_root
    run = cli("order", "d@4", "--step", "0", "--batch", "4", "--fields", "emb.npy", root=root)
    assert run.code == 0
    assert all(int(key[1:]) < 10 for key in run.out.split()[2::3]), "the others have no 'emb.npy'"
