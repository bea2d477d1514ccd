"""Worker processes that make whole batches in shared memory; docs/executors.md says when and why.

crew        the trainer's side: steps asked for, batches taken, workers that die replaced
process     one worker as the trainer sees it: a process, a socket, what was asked of it
ring        the memory that batches come in, given out again when nobody holds its arrays
sent        what a worker is told when it starts, and what it cannot be told
main        the worker's side: one batch after another
packed      batches that were made together, told together
slot        one batch into shared memory and out of it
outcome     what a worker says of a step: a batch or an error, and what it counted
wire        the messages between the two
segment     anonymous shared memory
watch       a worker ends when its trainer does
"""
