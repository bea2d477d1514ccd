"""Worker processes that make whole batches in shared memory; docs/executors.md says when and why.

pool:            the trainer's side: submits steps, takes batches, replaces workers that die
worker_handle:   one worker as the trainer sees it: a process, a socket, its pending steps
startup_message: everything a worker gets when it starts, and what cannot be sent
worker_main:     the worker's side: one batch after another
batch_message:   batches of one task, and a worker's answer: batches or an error, and its counters
batch_memory:    shared memory: batches written and read, segments reused once no array needs them
messages:        messages between trainer, fork server and worker
parent_watch:    ends a worker when its trainer ends
"""
