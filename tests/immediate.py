"""An executor with the interface of concurrent.futures that computes in this process."""

from concurrent.futures import Executor, Future


class Immediate(Executor):
    """Computes a task when it is given. Of those that `wanted` refuses, nothing comes."""

    def __init__(self, wanted=lambda job: True):
        self.jobs, self._wanted = [], wanted

    def submit(self, function, todo, *arguments):
        self.jobs += todo
        future = Future()
        future.set_result(function([job for job in todo if self._wanted(job)], *arguments))
        return future
