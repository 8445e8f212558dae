"""Kubernetes: gangs by the cluster's own controllers, on the network that its nodes have."""

from gpufabric.backends.kubernetes.backend import Kubernetes

__all__ = ["Kubernetes"]
