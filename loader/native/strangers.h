/* Stop signals that a forked child ignores unless a relative sends them.

   A scheduler signals every process of a job. A child that dies of it fails the step that its parent wants to finish,
   but `Process.terminate()` of the parent must end it. Only SA_SIGINFO names the sender: Python's handlers do not get
   it, and a blocked or ignored signal is inherited by programs that the child starts.

   Linux merges a signal with an equal one that is still pending. A parent's signal would be lost if it came between a
   stranger's signal and its delivery: on a busy machine a Pool then waits for its child for ever. So the parent first
   writes the child's pid into memory that both share (`mark_ended`), and a marked child obeys everybody. */

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_SIGNALS 65
#define MARKS 4096 /* slots by pid; a later mark in the same slot replaces an earlier one */

static volatile pid_t *ended_pids; /* shared with all forked children; NULL before `share_marks` */

static struct sigaction earlier_actions[MOST_SIGNALS];
static volatile pid_t stop_parent;   /* of this process when it was forked */
static volatile pid_t stop_ancestor; /* the process whose children are covered */

static void on_stop_signal(int number, siginfo_t *info, void *context)
{
    struct sigaction *earlier = &earlier_actions[number];
    pid_t sender = info->si_pid;
    int is_orphan = getppid() != stop_parent; /* nobody is left who could end it otherwise */
    int is_relative = sender == stop_parent || sender == stop_ancestor || sender == getpid();
    int is_marked = ended_pids != NULL && ended_pids[getpid() % MARKS] == getpid();
    if (!is_orphan && !is_relative && !is_marked)
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

static PyObject *share_marks(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    if (ended_pids != NULL)
        Py_RETURN_NONE; /* a descendant's marks lie in the same memory */
    void *memory = mmap(NULL, MARKS * sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    ended_pids = memory; /* zeroed; unmapped at the end of the last process */
    Py_RETURN_NONE;
}

static PyObject *mark_ended(PyObject *self, PyObject *args)
{
    int pid, is_ended;
    (void)self;
    if (!PyArg_ParseTuple(args, "ip", &pid, &is_ended))
        return NULL;
    if (ended_pids == NULL || pid <= 0)
        Py_RETURN_NONE;
    volatile pid_t *mark = &ended_pids[pid % MARKS];
    if (is_ended)
        *mark = pid;
    else if (*mark == pid)
        *mark = 0; /* of an earlier process with this pid */
    Py_RETURN_NONE;
}

static PyObject *ignore_strangers(PyObject *self, PyObject *args)
{
    int number, parent, ancestor;
    (void)self;
    if (!PyArg_ParseTuple(args, "iii", &number, &parent, &ancestor))
        return NULL;
    if (number < 1 || number >= MOST_SIGNALS)
        return PyErr_Format(PyExc_ValueError, "signal %d; accepted: 1 to %d", number, MOST_SIGNALS - 1);
    stop_parent = parent;
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
