"""Worker processes that make whole batches in shared memory; docs/executors.md explains when and why.

pool:            the trainer's side: submits steps, takes batches, replaces workers that die
worker_handle:   one worker: a process, a socket, its pending steps
worker_main:     the worker's side: one batch after another
startup_message: a worker's recipe, sent once
batch_message:   a worker's answer: batches, or an error
batch_memory:    shared memory for batches
messages:        messages between trainer, fork server and worker
parent_watch:    ends a worker when its trainer ends
"""
