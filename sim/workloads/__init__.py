"""Registry of tasks: name -> training problem."""

from __future__ import annotations

from collections.abc import Mapping

from ..config.user_code.call import is_import_path
from ..errors import InputError, did_you_mean, quote
from .tasks.digits import DIGITS_CNN, DIGITS_MLP
from .tasks.images import CIFAR_CNN7, CIFAR_RESNET20, DIGITS_RESNET20, MNIST_CNN
from .tasks.logistic import LOGISTIC
from .tasks.matrix_completion import MATRIX_COMPLETION
from .tasks.mnist_5k import MNIST_5K_CNN, MNIST_5K_MLP
from .tasks.quadratic import QUADRATIC
from .tasks.random_features import RANDOM_FEATURES
from .tasks.svm import SVM
from .tasks.text import TEXT_TRANSFORMER
from .user import user_task
from .workload import Task

TASKS: Mapping[str, Task] = {
    t.name: t
    for t in (
        DIGITS_MLP,
        DIGITS_CNN,
        LOGISTIC,
        QUADRATIC,
        MATRIX_COMPLETION,
        SVM,
        RANDOM_FEATURES,
        TEXT_TRANSFORMER,
        MNIST_5K_MLP,
        MNIST_5K_CNN,
        MNIST_CNN,
        CIFAR_CNN7,
        CIFAR_RESNET20,
        DIGITS_RESNET20,
    )
}


def find_task(name: str) -> Task:
    """Look up a built-in task, or a user's ``package.module:build``; ``InputError`` if there is none."""
    if is_import_path(name):
        return user_task(name)
    if name not in TASKS:
        raise InputError(f"unknown task {quote(name)}; {did_you_mean(name, TASKS)}")
    return TASKS[name]
