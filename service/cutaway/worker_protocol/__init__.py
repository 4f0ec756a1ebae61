"""The protocol between gateway and workers: messages, cancellation, trace context, streamed replies."""
