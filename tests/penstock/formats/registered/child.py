"""A registration, sealing or adoption by a process of its own, killed at the write number `at` of the root."""

import loader
from loader.dataset.root import root_over
from loader.storage import open_store
from penstock.formats.registration.register import register


def run(root, place, at, when, forks, verb="register", format="webdataset"):
    from tests.mortal_store import Death

    def mortal(store, verbs):
        return Death(at, when, verbs).of(store)

    if verb == "seal":
        from penstock.formats.registration.sealing import seal

        return seal(root_over(mortal(open_store(root), {"put_if_absent"})).open("photos")).failures
    if verb == "adopt":
        from penstock.formats.registration.adoption import adopt

        return adopt(root_over(mortal(open_store(root), {"put_file", "put_if_absent"})), "photos").failures
    store = mortal(open_store(root), {"put_if_absent", "put", "put_file"})
    return register(root_over(store), format, place, "photos").version.id


assert loader
