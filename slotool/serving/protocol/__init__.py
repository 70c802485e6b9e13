"""Messages of clients and server: tensors and bodies within bounds, replies."""
