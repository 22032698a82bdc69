/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What path.bpf.c uses of the kernel's interface beside ../include. */
#pragma once

#include "../include/flow.h"

#define __noinline __attribute__((noinline))

enum {
	BPF_ANY = 0,
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

static long (*const bpf_map_update_elem)(const void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static void *(*const bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static __u64 (*const bpf_get_func_ip)(void *ctx) = (void *)173;
static long (*const bpf_get_func_arg)(void *ctx, __u32 n, __u64 *value) = (void *)183;
static long (*const bpf_get_func_ret)(void *ctx, __u64 *value) = (void *)184;

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
