"""The object of an attempt on Kubernetes, and what its cluster file takes; no server is asked."""

import pytest

from loader.errors import InvalidCluster
from penstock.compute.cluster import read_cluster
from penstock.compute.engines.kubernetes import KubernetesCluster, job_object
from tests.refusals import refusal

IMAGE = f"registry.example/penstock@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f'image = "{IMAGE}"\naccount = "x"\n', "account"),
        (f'image = "{IMAGE}"\n[slot]\ngpus = 1\ngpu_type = "x"\n', "gpu_type"),
        (f'image = "{IMAGE}"\n[kubernetes]\nname_space = "x"\n', "kubernetes.name_space"),
        (
            f'image = "{IMAGE}"\n[kubernetes]\ntolerations = [{{ operator = "Sometimes" }}]\n',
            "kubernetes.tolerations[0].operator",
        ),
    ],
)
def test_what_a_file_does_not_take_is_told(text, what, tmp_path):
    (tmp_path / "cluster.toml").write_text(f'engine = "kubernetes"\n{text}')
    with refusal(InvalidCluster, what=what, where=tmp_path / "cluster.toml"):
        read_cluster(tmp_path / "cluster.toml")


@pytest.mark.parametrize("image", ["registry.example/penstock:latest", ""])
def test_image_is_named_by_its_digest(image, tmp_path):
    (tmp_path / "cluster.toml").write_text(f'engine = "kubernetes"\nimage = "{image}"\n')
    with refusal(InvalidCluster, what="image", given=image):
        read_cluster(tmp_path / "cluster.toml").open()


def test_evictions_count_for_nothing_and_a_refusal_ends_an_element():
    body = job_object(KubernetesCluster(slots=2, image=IMAGE), "pk-a-1", ["python", "$HOME"], 9, (0, 3))
    evicted, refused = body["spec"]["podFailurePolicy"]["rules"]
    assert evicted["action"] == "Ignore"
    assert (refused["action"], refused["onExitCodes"]["values"]) == ("FailIndex", [3])
    assert (body["spec"]["completions"], body["spec"]["parallelism"]) == (8, 2)
    (container,) = body["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["python", "$$HOME"]  # which Kubernetes reads as $HOME
