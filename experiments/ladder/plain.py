"""MNIST in plain PyTorch: python experiments/ladder/plain.py"""

import torch
from mnist import BATCH, LEARNING_RATE, images, network
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

train_loader = DataLoader(images(train=True), BATCH, shuffle=True)
test_loader = DataLoader(images(train=False), BATCH)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)

for inputs, labels in train_loader:
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()

model.eval()
right = seen = 0
with torch.no_grad():
    for inputs, labels in test_loader:
        right += (model(inputs).argmax(1) == labels).sum().item()
        seen += len(labels)
print(f"{right / seen:.4f} of {seen}")
