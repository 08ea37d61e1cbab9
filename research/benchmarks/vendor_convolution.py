"""What PyTorch's own convolutions reach on one thread, channels last, at the shapes of the CNN: GFLOP/s by batch size.

By processor time of the thread, best of many: a busy machine hardly changes it.
"""

import time

import torch

SHAPES = {"conv1": (1, 16, 8, 28, 2, 3), "conv2": (16, 32, 4, 13, 2, 0)}  # in, out, side, image, stride, padding


def best(run, repeats=40):
    took = []
    for _ in range(repeats):
        began = time.thread_time()
        run()
        took.append(time.thread_time() - began)
    return min(took)


def main():
    torch.set_num_threads(1)
    print(f"{'':8} {'batch':>6} {'forward':>8} {'backward':>9}   GFLOP/s; conv1 without the gradient of its input")
    for name, (inward, outward, side, image, stride, padding) in SHAPES.items():
        for batch in (20, 60, 240):
            last = {"memory_format": torch.channels_last}
            inputs = torch.randn(batch, inward, image, image).contiguous(**last)
            weight, bias = torch.randn(outward, inward, side, side).contiguous(**last), torch.zeros(outward)
            where = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
            outputs = torch.convolution(inputs, weight, bias, *where)
            gradient = torch.randn_like(outputs)
            wanted = [name == "conv2", True, True]
            flops = 2 * outputs[0, 0].numel() * batch * outward * inward * side**2
            forward = best(lambda i=inputs, w=weight, b=bias, a=where: torch.convolution(i, w, b, *a))
            backward = best(
                lambda g=gradient, i=inputs, w=weight, o=outward, a=where, m=wanted: (
                    torch.ops.aten.convolution_backward(g, i, w, [o], *a, m)
                )
            )
            print(f"{name:8} {batch:6} {flops / forward / 1e9:8.1f} {sum(wanted[:2]) * flops / backward / 1e9:9.1f}")
    pool = torch.nn.MaxPool2d(2, stride=1)
    images = torch.randn(20, 16, 14, 14).contiguous(memory_format=torch.channels_last)
    print(f"first pool, batch 20, forward: {best(lambda: pool(images)) * 1e6:.0f} us")


if __name__ == "__main__":
    main()
