"""Messages between trainer, workers and fork server."""

import pytest

from loader.run.workers.messages import (
    MessageKind,
    WorkerMessage,
    connection,
    receive,
    receive_exit_code,
    send,
)


@pytest.fixture
def trainer():
    """A trainer's socket. Its worker has answered, and ended before it read all of its tasks."""
    trainer, worker = connection()
    send(worker, WorkerMessage(MessageKind.READY))
    send(worker, WorkerMessage(MessageKind.DONE, task=4))
    send(trainer, WorkerMessage(MessageKind.MAKE, task=5))
    worker.close()
    with trainer:
        yield trainer


@pytest.mark.parametrize("wait", [True, False])
def test_answers_of_a_worker_that_is_gone_come_first(trainer, wait):
    """Without them, the step that ended the worker would be taken for the one before."""
    assert receive(trainer, wait=wait) == (WorkerMessage(MessageKind.READY), None)
    assert receive(trainer, wait=wait) == (WorkerMessage(MessageKind.DONE, task=4), None)
    with pytest.raises(EOFError):
        receive(trainer, wait=wait)


def test_answers_come_after_a_task_that_could_not_be_sent(trainer):
    with pytest.raises(EOFError):
        send(trainer, WorkerMessage(MessageKind.MAKE, task=6))
    assert receive(trainer, wait=False) == (WorkerMessage(MessageKind.READY), None)


def test_exit_code_of_a_fork_server_that_is_gone():
    control, server = connection()
    server.send(b"".join(number.to_bytes(8, "little") for number in (3, 137)))
    control.send(b"unread")
    server.close()
    with control:
        assert receive_exit_code(control, 3) == 137
        with pytest.raises(EOFError):
            receive_exit_code(control, 3)
