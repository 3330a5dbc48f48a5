"""gradpress in trainers that wrap the model themselves.

Accelerate needs nothing from here: gradpress.attach(accelerator.prepare(model)).
"""
