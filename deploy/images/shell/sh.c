/*
 * sh is what the validation suite's containers begin with. A script that is the name of
 * one program takes no shell: that program takes this one's place within a moment, so
 * that it is there when the first signal comes. All other scripts are the stand-in
 * shell's.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc == 3 && strcmp(argv[1], "-c") == 0) {
		const char *script = argv[2];
		char path[64];
		size_t length = strlen(script);

		if (length > 0 && length < 32 && strspn(script, "abcdefghijklmnopqrstuvwxyz") == length) {
			char *command[] = {argv[2], 0};

			snprintf(path, sizeof path, "/bin/%s", script);
			if (access(path, X_OK) == 0) {
				execv(path, command);
			}
		}
	}
	execv("/bin/standin", argv);
	perror("sh: /bin/standin");
	return 127;
}
