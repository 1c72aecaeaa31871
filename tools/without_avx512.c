/* Preloaded, a program finds itself on a processor without AVX-512 and runs at this one's speed (Linux on x86-64 where
 * /proc/cpuinfo has cpuid_fault): every CPUID traps, and its answer lacks bits of leaf 7. FEDCIPHER_PROCESSOR says which:
 * AlderLake has VAES, any other has none. glibc has asked before: GLIBC_TUNABLES is for it. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SET_CPUID = 0x1012 };

/* F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; 4VNNIW, 4FMAPS, VP2INTERSECT, FP16 and AMX. */
static const unsigned without_b = 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31;
static unsigned without_c = 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14;
static const unsigned without_d = 1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;
/* BF16, and AVX10 of the next leaf. */
static const unsigned without_a1 = 1u << 5, without_d1 = 1u << 19;
/* GFNI, VAES, VPCLMULQDQ. */
static const unsigned vaes = 1u << 8 | 1u << 9 | 1u << 10;

static void answer(int number, siginfo_t *info, void *context) {
	(void)info;
	greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
	const unsigned char *at = (const unsigned char *)r[REG_RIP];
	if (at[0] != 0x0f || at[1] != 0xa2) {
		/* Another's fault: it comes again, and ends the program. */
		signal(number, SIG_DFL);
		return;
	}
	unsigned leaf = r[REG_RAX], sub = r[REG_RCX], a, b, c, d;
	syscall(SYS_arch_prctl, SET_CPUID, 1);
	__cpuid_count(leaf, sub, a, b, c, d);
	syscall(SYS_arch_prctl, SET_CPUID, 0);
	if (leaf == 7 && sub == 0) {
		b &= ~without_b;
		c &= ~without_c;
		d &= ~without_d;
	} else if (leaf == 7 && sub == 1) {
		a &= ~without_a1;
		d &= ~without_d1;
	}
	r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d;
	r[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
	const char *processor = getenv("FEDCIPHER_PROCESSOR");
	if (!processor || strcmp(processor, "AlderLake"))
		without_c |= vaes;
	struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigaction(SIGSEGV, &action, NULL);
	if (syscall(SYS_arch_prctl, SET_CPUID, 0)) {
		perror("CPUID does not trap on this machine");
		_exit(1);
	}
}
