"""The same under Accelerate: torchrun --nproc-per-node 2 experiments/ladder/accelerated.py"""

import torch
from accelerate import Accelerator
from mnist import BATCH, LEARNING_RATE, images, network
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
train_loader = DataLoader(images(train=True), BATCH, shuffle=True)
test_loader = DataLoader(images(train=False), BATCH)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)

for inputs, labels in train_loader:
    optimizer.zero_grad()
    accelerator.backward(cross_entropy(model(inputs), labels))
    optimizer.step()

model.eval()
right = seen = 0
with torch.no_grad():
    for inputs, labels in test_loader:
        found, wanted = accelerator.gather_for_metrics((model(inputs).argmax(1), labels))
        right += (found == wanted).sum().item()
        seen += len(wanted)
accelerator.print(f"{right / seen:.4f} of {seen}")
accelerator.end_training()
