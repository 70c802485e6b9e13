"""What clients send and get: tensors and bodies within bounds, replies, the OpenAPI document."""
