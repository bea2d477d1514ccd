/* Stop signals that a forked child ignores unless a relative sends them.

   A scheduler signals every process of a job. A child that dies of it fails the step that its parent wants to finish,
   but `Process.terminate()` of the parent must end it. Only SA_SIGINFO names the sender: Python's handlers do not get
   it, and a blocked or ignored signal is inherited by programs that the child starts.

   Linux merges a signal with an equal one that is still pending: a parent's signal is lost if it comes in the moment
   between a stranger's signal and its delivery. */

#include <signal.h>
#include <unistd.h>

#define MOST_SIGNALS 65

static struct sigaction earlier_actions[MOST_SIGNALS];
static volatile pid_t stop_parent;   /* of this process when it was forked */
static volatile pid_t stop_ancestor; /* the process whose children are covered */

static void on_stop_signal(int number, siginfo_t *info, void *context)
{
    struct sigaction *earlier = &earlier_actions[number];
    pid_t sender = info->si_pid;
    int is_orphan = getppid() != stop_parent; /* nobody is left who could end it otherwise */
    int is_relative = sender == stop_parent || sender == stop_ancestor || sender == getpid();
    if (!is_orphan && !is_relative)
        return;
    if (earlier->sa_flags & SA_SIGINFO) {
        earlier->sa_sigaction(number, info, context);
    } else if (earlier->sa_handler == SIG_DFL) {
        sigaction(number, earlier, NULL);
        raise(number); /* blocked until this function returns */
    } else if (earlier->sa_handler != SIG_IGN) {
        earlier->sa_handler(number);
    }
}

static PyObject *ignore_strangers(PyObject *self, PyObject *args)
{
    int number, ancestor;
    (void)self;
    if (!PyArg_ParseTuple(args, "ii", &number, &ancestor))
        return NULL;
    if (number < 1 || number >= MOST_SIGNALS)
        return PyErr_Format(PyExc_ValueError, "signal %d; accepted: 1 to %d", number, MOST_SIGNALS - 1);
    stop_parent = getppid();
    stop_ancestor = ancestor;
    struct sigaction current;
    if (sigaction(number, NULL, &current) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_stop_signal)
        Py_RETURN_NONE; /* inherited from a covered parent */
    earlier_actions[number] = current;
    struct sigaction covered = {0};
    covered.sa_sigaction = on_stop_signal;
    covered.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&covered.sa_mask);
    if (sigaction(number, &covered, NULL) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}
