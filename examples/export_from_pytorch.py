#!/usr/bin/env python3
"""Export a PyTorch module so that it trains well with mpr.

    python export_from_pytorch.py            writes classifier.onnx and batch.npz from a small example

What matters, and why:
  * eval() before the export: Dropout then vanishes and BatchNorm is frozen. mpr does not guess them back; an export in
    training mode (training=TrainingMode.TRAINING, do_constant_folding=False) keeps them.
  * A symbolic first dimension: the batch size of training is then free, and the last batch of an epoch may be short.
  * opset 17 or newer: LayerNormalization is one operator there. Older files train as well; mpr finds the pattern again.
  * Logits, not probabilities: softmax and cross-entropy belong together (mpr-train --loss cross-entropy).
  * Weights away from their defaults: exporters merge tensors of EQUAL VALUES (fresh LayerNorm ones and zero biases) into
    one initializer. Train from a checkpoint, or move them a little as below; otherwise mpr has to untie them again.
  * Names: output "logits", and the inputs by the names that your data file uses.
"""
import numpy
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width=64, classes=10):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x))


def export(module, example, path, names):
    with torch.no_grad():                                     # keep equal-valued parameters apart
        for p in module.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 1e-3)
    torch.onnx.export(module.eval(), example, path, dynamo=False, opset_version=17, input_names=names, output_names=["logits"],
                      dynamic_axes={**{n: {0: "batch"} for n in names}, "logits": {0: "batch"}})


if __name__ == "__main__":
    torch.manual_seed(0)
    x, labels = torch.rand(32, 64), torch.randint(0, 10, (32,))
    export(Classifier(), (x,), "classifier.onnx", ["x"])
    numpy.savez("batch.npz", x=x.numpy(), labels=labels.numpy())
    print("wrote classifier.onnx and batch.npz; now: mpr-train classifier.onnx --train-data batch.npz --loss cross-entropy --fp16")
