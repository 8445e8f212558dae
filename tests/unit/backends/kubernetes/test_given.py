import pytest

from gpufabric.backends.kubernetes.backend import Kubernetes
from gpufabric.config import Settings
from gpufabric.errors import SpecError
from gpufabric.job import JobRef


@pytest.mark.parametrize("name", ["No Such", "a/b", "", "-a", "a_b", "a" * 64, "a\n"])
def test_a_namespace_that_cannot_be_is_refused_before_a_server_is_asked(name):
    with pytest.raises(SpecError, match=r"namespace: .*names no namespace"):
        Kubernetes("prod", name)


@pytest.mark.parametrize("patch", [[1], "nodeSelector", 3])
def test_a_patch_that_is_no_mapping_is_refused_by_its_type(patch):
    with pytest.raises(SpecError, match="pod_patch: a patch is a mapping"):
        Kubernetes("prod", pod_patch=patch)


def test_a_patch_of_the_whole_pod_is_told_that_it_patches_the_spec():
    with pytest.raises(SpecError, match=r"pod_patch\.spec: it patches the pod's spec"):
        Kubernetes("prod", pod_patch={"spec": {"nodeSelector": {"a": "b"}}})


def test_a_directive_of_a_strategic_merge_is_refused_where_it_stands():
    patch = {"volumes": [{"name": "shm"}, {"name": "x", "$patch": "delete"}]}
    with pytest.raises(SpecError, match=r"pod_patch\.volumes\[1\]\.\$patch: directives"):
        Kubernetes("prod", pod_patch=patch)


@pytest.mark.parametrize("text", ["kubernetes://prod/x", "kubernetes:///ml/x"])
@pytest.mark.parametrize("call", ["status", "teardown", "cancel", "logs", "reaches"])
def test_a_ref_that_is_cut_short_is_refused_and_not_gone(text, call):
    with pytest.raises(SpecError, match="kubernetes://CONTEXT/NAMESPACE/NAME"):
        getattr(Kubernetes("prod", "ml"), call)(JobRef.parse(text))


@pytest.mark.parametrize("text", ["kubernetes://prod/x", "kubernetes:///ml/x"])
def test_no_backend_is_made_from_a_ref_that_is_cut_short(text):
    with pytest.raises(SpecError, match="kubernetes://CONTEXT/NAMESPACE/NAME"):
        Kubernetes.from_ref(JobRef.parse(text), Settings())
