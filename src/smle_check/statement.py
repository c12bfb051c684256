"""The claim in words, part of every certificate: what is proved, under which assumptions, and what is not."""

from typing import Any

VERSION = 2
STATEMENT: dict[str, Any] = {
    "claim": "For every input in the domain, and whatever the model in front of the head answers, the exact values of "
    "the numbers that the deployed float32 program outputs satisfy every rule, without tolerance.",
    "assumptions": [
        "The head runs in IEEE 754 float32, its gate and clips in float64, with rounding to nearest; summation "
        "order, fused multiply-add, batch size, threads and flush-to-zero of results are free.",
        "Inputs are passed as finite float32 or float64 numbers. Where the machine treats subnormal numbers as zero, "
        "no input is subnormal; no constant of domain and gate is.",
        "A condition on one input is solved for that input (3 x < 1 is x < 1/3), and its constant is then read as the "
        "nearest number of the input's format, as the ends of the ranges are.",
        "Of the 0/1 columns of a categorical input exactly one is 1.",
        "The runtime executes the program that the format states for this kind of head, with the stored constants.",
    ],
    "not_guaranteed": [
        "The model in front of the head (a backbone, an estimator, any function), and so the accuracy of the "
        "predictions.",
        "Inputs outside the domain: numbers are clamped to their range, and the rules hold at the clamped input; "
        "columns of a categorical input that are not 0/1 with exactly one 1 are not mended.",
        "Other precisions (bfloat16, float16, TF32, quantized heads).",
        "Arithmetic that is added after the head.",
    ],
}

GRID_STATEMENT: dict[str, Any] = {
    "claim": "For every input in the domain, and whatever the model in front of the head answers, every output is a "
    "whole number of its steps, within its range, and the numbers that these stand for, k times the step, satisfy "
    "every rule exactly, equalities included. What the program outputs is the float32 number nearest to k times the "
    "step: that number itself unless the step is a decimal fraction, such as 0.01; then float64(y) / step rounds to k.",
    "assumptions": [
        "The head runs in IEEE 754 float64, with rounding to nearest, and casts to float32 once, at the end; summation "
        "order, fused multiply-add, batch size, threads and flush-to-zero of results are free.",
        "Inputs are passed as finite float32 or float64 numbers. An input with a step is passed as the number of its "
        "format that is nearest to a multiple, and is read as that multiple; an input without one that is nearer to 0 "
        "than 2^-100 is read as 0.",
        *STATEMENT["assumptions"][2:],
    ],
    "not_guaranteed": [
        *STATEMENT["not_guaranteed"],
        "Sums and differences of the float32 outputs of decimal steps: they are rounded as floats are.",
    ],
}
