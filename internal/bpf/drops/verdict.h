/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Conntrack and NAT drop a packet by the verdict that they return to nf_hook_slow,
 * which frees it: here its cause is remembered until then. All of it happens on one
 * CPU, one after the other. */
#pragma once

#include "tables.h"

enum {
	NF_DROP = 0,
	NF_VERDICT_MASK = 0xff,
	MAX_ERRNO = 4095,
};

/* A failed allocation is distinguished from an invalid packet. */
const volatile bool has_alloc;

/* condemn keeps the first cause: that of the function further inside. */
static __always_inline int condemn(__u64 skb, __u32 cause)
{
	struct cpu *cpu = this_cpu();

	if (!cpu || (cpu->condemned == skb && recent(cpu->condemned_ns)))
		return 0;
	cpu->condemned = skb;
	cpu->condemned_ns = bpf_ktime_get_ns();
	cpu->cause = cause;
	return 0;
}

static __always_inline bool dropped(__u64 verdict)
{
	return ((__u32)verdict & NF_VERDICT_MASK) == NF_DROP;
}

/* struct nf_conn *__nf_conntrack_alloc(net, zone, orig, repl, gfp, hash) */
SEC("fexit/__nf_conntrack_alloc")
int verdict_alloc(__u64 *ctx)
{
	struct cpu *cpu;

	if (ctx[6] < (__u64)-MAX_ERRNO)
		return 0;
	cpu = this_cpu();
	if (cpu)
		cpu->no_entry_ns = bpf_ktime_get_ns();
	return 0;
}

/* unsigned int nf_conntrack_in(skb, state): NF_DROP where resolve_normal_ct found no
 * room for a new connection, or where a protocol's tracker says so. */
SEC("fexit/nf_conntrack_in")
int verdict_track(__u64 *ctx)
{
	struct cpu *cpu;
	bool full;

	if (!dropped(ctx[2]))
		return 0;
	cpu = this_cpu();
	if (!cpu)
		return 0;
	full = !has_alloc || (cpu->no_entry_ns && recent(cpu->no_entry_ns));
	cpu->no_entry_ns = 0;
	return condemn(ctx[0], full ? CAUSE_TABLE_FULL : CAUSE_INVALID);
}

/* int __nf_conntrack_confirm(skb) */
SEC("fexit/__nf_conntrack_confirm")
int verdict_confirm(__u64 *ctx)
{
	return dropped(ctx[1]) ? condemn(ctx[0], CAUSE_NOT_INSERTED) : 0;
}

/* unsigned int nf_nat_inet_fn(priv, skb, state) */
SEC("fexit/nf_nat_inet_fn")
int verdict_nat(__u64 *ctx)
{
	return dropped(ctx[3]) ? condemn(ctx[1], CAUSE_NAT_FAILED) : 0;
}

/* unsigned int nf_nat_masquerade_ipv4(skb, hooknum, range, out): where
 * nftables frees itself what it refuses, it does so as if a rule had said so. */
SEC("fexit/nf_nat_masquerade_ipv4")
int verdict_masq4(__u64 *ctx)
{
	return dropped(ctx[4]) ? condemn(ctx[0], CAUSE_NAT_FAILED) : 0;
}

/* unsigned int nf_nat_masquerade_ipv6(skb, range, out) */
SEC("fexit/nf_nat_masquerade_ipv6")
int verdict_masq6(__u64 *ctx)
{
	return dropped(ctx[3]) ? condemn(ctx[0], CAUSE_NAT_FAILED) : 0;
}
