"""The claim in words, part of every certificate: what is proved, on which assumptions, and what is not."""

VERSION = 2
STATEMENT = {
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
