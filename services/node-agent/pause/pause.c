/*
 * pause is the first process of a PID namespace that the containers of a pod
 * share: it keeps the namespace alive, reaps orphans, and ends on a signal.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
	_exit(128 + signal);
}

static void reap(int signal) {
	(void)signal;
	while (waitpid(-1, 0, WNOHANG) > 0) {
	}
}

int main(void) {
	struct sigaction on_end = {.sa_handler = end};
	struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};

	if (sigaction(SIGINT, &on_end, 0) < 0 || sigaction(SIGTERM, &on_end, 0) < 0 || sigaction(SIGCHLD, &on_child, 0) < 0) {
		return 1;
	}
	for (;;) {
		pause();
	}
}
