/* Turns a program's TCP sockets into those of the kernel's SMC, as smc_run(8) does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { AF_SMC_NUMBER = 43, SOCK_KIND = 0xf };

int socket(int family, int kind, int protocol)
{
	int (*next)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	int is_tcp = (kind & SOCK_KIND) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);

	/* Protocol 0 is SMC over IPv4, 1 over IPv6. */
	if (is_tcp && (family == AF_INET || family == AF_INET6))
		return next(AF_SMC_NUMBER, kind, family == AF_INET6);
	return next(family, kind, protocol);
}
