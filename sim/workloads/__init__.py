"""Registry of tasks: name -> training problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..config.registry import Registry
from ..config.user_code.call import is_import_path
from ..errors import InputError, did_you_mean, quote

if TYPE_CHECKING:
    from .workload import Task

TASKS: Final = Registry["Task"](
    __name__,
    {
        "digits-mlp": ".tasks.digits:DIGITS_MLP", "digits-cnn": ".tasks.digits:DIGITS_CNN",
        "logistic": ".tasks.logistic:LOGISTIC", "quadratic": ".tasks.quadratic:QUADRATIC",
        "matrix-completion": "paceline.extras.papers.tasks.matrix_completion:MATRIX_COMPLETION",
        "svm": "paceline.extras.papers.tasks.svm:SVM",
        "random-features": "paceline.extras.papers.tasks.random_features:RANDOM_FEATURES",
        "text-mlp": ".tasks.text_mlp:TEXT_MLP", "text-transformer": ".tasks.text:TEXT_TRANSFORMER",
        "mnist-5k-mlp": "paceline.extras.papers.tasks.mnist_5k:MNIST_5K_MLP",
        "mnist-5k-cnn": "paceline.extras.papers.tasks.mnist_5k:MNIST_5K_CNN",
        "mnist-cnn": "paceline.extras.papers.tasks.images:MNIST_CNN",
        "cifar-cnn7": "paceline.extras.papers.tasks.images:CIFAR_CNN7",
        "cifar-resnet20": "paceline.extras.papers.tasks.images:CIFAR_RESNET20",
        "digits-resnet20": "paceline.extras.papers.tasks.images:DIGITS_RESNET20",
    },
)  # fmt: skip


def find_task(name: str) -> Task:
    """Look up a built-in task, or a user's ``package.module:build``; ``InputError`` if there is none."""
    if is_import_path(name):
        from .user_task import user_task

        return user_task(name)
    if name not in TASKS:
        raise InputError(f"unknown task {quote(name)}; {did_you_mean(name, TASKS)}")
    return TASKS[name]
