/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What path.bpf.c uses of the kernel's interface beside ../include. */
#pragma once

#include "../include/flow.h"

/* The registers at a function's first instruction: arch/x86/include/asm/ptrace.h
 * and, as programs see them, user_pt_regs of arch/arm64/include/uapi/asm/ptrace.h.
 * Neither layout changes. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	__u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define ARG1(regs) ((regs)->di)
#define ARG2(regs) ((regs)->si)
#define ARG3(regs) ((regs)->dx)
#define ARG4(regs) ((regs)->cx)
#define ARG5(regs) ((regs)->r8)
/* The breakpoint, or the call in its place, lies before it. */
#define AT(regs) ((regs)->ip - 1)
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	__u64 regs[31], sp, pc, pstate;
};
#define ARG1(r) ((r)->regs[0])
#define ARG2(r) ((r)->regs[1])
#define ARG3(r) ((r)->regs[2])
#define ARG4(r) ((r)->regs[3])
#define ARG5(r) ((r)->regs[4])
#define AT(r) ((r)->pc)
#else
#error "this processor's registers are not known here"
#endif

/* The device's name, for people. */
struct net_device___named {
	char name[16];
} CO_RE;

struct nf_hook_state {
	__u8 hook;
	__u8 pf;
} CO_RE;
