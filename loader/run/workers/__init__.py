"""Worker processes that make whole batches in shared memory; docs/executors.md says when and why.

pool:            the trainer's side: steps asked for, batches taken, workers that die replaced
process:         one worker as the trainer sees it: a process, a socket, the steps asked of it
ring:            segments of memory that batches come in, given out again when nobody holds their arrays
startup_message: everything a worker is told when it starts, and what it cannot be told
main:            the worker's side: one batch after another
batch_message:   batches that were made together, sent together
batch_memory:    one batch into shared memory and out of it
outcome:         a worker's answer for a step: a batch or an error, and its counters
messages:        the messages between the two
shared_memory:   anonymous shared memory
parent_watch:    a worker ends when its trainer does
open_files:      the error of a worker that has too few descriptors
"""
