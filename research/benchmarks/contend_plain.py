"""The plain baseline in its strongest form: two spawned worker processes with one thread each, one channels-last module
reused for all clients, channels-last input, SGD without momentum, every client's data at hand in its worker."""

import multiprocessing
import sys

import torch
from workload import BATCH, EPOCHS, RATE, answer, load, network, put

PROCESSES = 2


def work(path, which, jobs, results):
    torch.set_num_threads(1)
    inputs, targets, starts = load(path)
    clients = range(which, len(inputs), PROCESSES)
    data = {i: torch.from_numpy(inputs[i]).contiguous(memory_format=torch.channels_last) for i in clients}
    answers = {i: torch.from_numpy(targets[i]) for i in clients}
    module = network().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    loss_of = torch.nn.CrossEntropyLoss()

    def best(i):
        with torch.no_grad():
            losses = []
            for start in starts:
                put(start, module)
                losses.append(loss_of(module(data[i]), answers[i]).item())
        return min(range(len(starts)), key=losses.__getitem__)

    def train(i, start):
        put(start, module)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(answers[i])).split(BATCH):
                optimiser.zero_grad(set_to_none=True)
                batch = data[i][chosen].contiguous(memory_format=torch.channels_last)
                loss_of(module(batch), answers[i][chosen]).backward()
                optimiser.step()
        return torch.cat([part.detach().reshape(-1) for part in module.parameters()])

    results.put(0)
    while (job := jobs.get()) is not None:
        total = sum(train(i, starts[best(i) if job == "ifca" else 0]) for i in clients)
        results.put(total.numpy())


def main(path):
    context = multiprocessing.get_context("spawn")
    jobs, results = [context.Queue() for _ in range(PROCESSES)], context.Queue()
    for which, queue in enumerate(jobs):
        context.Process(target=work, args=(path, which, queue, results), daemon=True).start()

    def collect():
        return sum(results.get() for _ in range(PROCESSES))

    def round_of(kind):
        for queue in jobs:
            queue.put(kind)
        collect()

    collect()
    answer(lambda: round_of("train"), lambda: round_of("ifca"))


if __name__ == "__main__":
    main(sys.argv[1])
