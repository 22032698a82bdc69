/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The memory of decisions, of which each CPU has a part of its own, so that what comes again needs neither mappings nor
 * routes. Of IPv4 a decision is one cache line, and IPv6 has a second one in a table of its own. Parts of one array, and
 * not BPF_MAP_TYPE_PERCPU_ARRAY, which finds each element by a pointer: one cache line more of a flow. */
#pragma once

#include "decide.h"

/* struct key is a flow in words, and the epoch in which something was decided for it. */
struct key {
	__u64 addresses; /* their last words */
	__u64 ports;     /* and the interface by which it comes in */
	__u64 rest;
};

/* struct kept is a flow and what was decided for it; of addresses it has the last word. */
struct kept {
	struct key key;
	__u32 made; /* jiffies */
	__u32 out;
	__be32 to_src, to_dst;
	__be16 to_sport, to_dport;
	__u8 dmac[6], smac[6];
	__u16 mtu;
	__u16 rule_in, rule_out;
	__u8 redirects, ethernet;
};

_Static_assert(sizeof(struct kept) == 64, "a cache line");

/* struct kept_ipv6 has the other words. */
struct kept_ipv6 {
	__be32 src[3], dst[3], to_src[3], to_dst[3];
};

/* BPF_F_MMAPABLE has elements start on a page, and with it on cache lines (array_map_alloc). */
MAP_OF(decisions, BPF_MAP_TYPE_ARRAY, __u32, struct kept, 2, BPF_F_MMAPABLE);
MAP_OF(decisions_ipv6, BPF_MAP_TYPE_ARRAY, __u32, struct kept_ipv6, 1, BPF_F_MMAPABLE);

/* last_slot is the number of places of a CPU, which is a power of two, less one. */
const volatile __u32 last_slot = 1;

/* seed has others not know which flows have the same places. */
const volatile __u64 seed;

/* epoch changes where what is kept must not be used any more. */
__u32 epoch;

/* Each flow has four places: two lines that lie side by side, and two elsewhere, so that flows seldom displace each other. */
enum {
	PLACES = 4,
};

static __always_inline struct key key_of(const struct packet *p, __u32 decided_in)
{
	const struct flow *f = &p->flow;

	return (struct key){
		.addresses = f->src.w[3] | (__u64)f->dst.w[3] << 32,
		.ports = f->sport | (__u32)f->dport << 16 | (__u64)f->in << 32,
		.rest = f->protocol | (__u32)f->tos << 8 | (p->flags & IPV6 ? 2 : 1) << 16 | (__u64)decided_in << 32,
	};
}

static __always_inline __u64 hash(const struct key *k, const struct flow *f)
{
	__u64 h = (k->addresses ^ seed) * 0x9e3779b97f4a7c15ull;

	h ^= h >> 32; /* a product's low bits know nothing of the high bits, where an address has its last byte */
	h ^= ((__u64)f->src.w[1] << 32 | f->dst.w[1]) + ((__u64)f->src.w[2] ^ f->dst.w[2]);
	h = (h ^ k->ports ^ k->rest << 32) * 0xff51afd7ed558ccdull;
	return h ^ h >> 32;
}

/* place is one of the places of a flow in the part that begins at first. */
static __always_inline __u32 place(__u32 first, __u64 hash, int n)
{
	__u32 at = n & 2 ? hash >> 20 : hash >> 40;

	return first + ((at ^ (n & 1)) & last_slot);
}

static __always_inline __u32 first_place(void)
{
	return bpf_get_smp_processor_id() * (last_slot + 1);
}

static __always_inline bool same_words(const __be32 *words, const struct address *a)
{
	return words[0] == a->w[0] && words[1] == a->w[1] && words[2] == a->w[2];
}

static __always_inline void set_words(__be32 *words, const struct address *a)
{
	words[0] = a->w[0];
	words[1] = a->w[1];
	words[2] = a->w[2];
}

static __always_inline void get_address(struct address *a, const __be32 *words, __be32 last)
{
	a->w[0] = words[0];
	a->w[1] = words[1];
	a->w[2] = words[2];
	a->w[3] = last;
}

/* holds reports whether what is kept is about a flow, and may still be used. */
static __always_inline bool holds(const struct kept *k, const struct key *key, __u32 now)
{
	return k->key.addresses == key->addresses && k->key.ports == key->ports && k->key.rest == key->rest && now - k->made < keep_jiffies;
}

/* others_hold is holds for the other words of IPv6's addresses, and takes them. */
static __always_inline bool others_hold(__u32 at, const struct packet *p, struct decision *d)
{
	const struct kept_ipv6 *k = bpf_map_lookup_elem(&decisions_ipv6, &at);

	if (!k || !same_words(k->src, &p->flow.src) || !same_words(k->dst, &p->flow.dst))
		return false;
	get_address(&d->src, k->to_src, 0);
	get_address(&d->dst, k->to_dst, 0);
	return true;
}

/* find_kept returns what is kept about a packet; of IPv6 d gets the other words. */
static __always_inline const struct kept *find_kept(const struct packet *p, __u32 now, struct decision *d)
{
	struct key key = key_of(p, epoch);
	__u64 h = hash(&key, &p->flow);
	__u32 first = first_place(), at;
	const struct kept *k;

	for (int n = 0; n < PLACES; n++) {
		at = place(first, h, n);
		k = bpf_map_lookup_elem(&decisions, &at);
		if (k && holds(k, &key, now) && (!(p->flags & IPV6) || others_hold(at, p, d)))
			return k;
	}
	return 0;
}

/* recall finds what was decided for the flow of a packet. */
static __always_inline bool recall(const struct packet *p, __u32 now, struct decision *d)
{
	const struct kept *k;

	set_ipv4(&d->src, 0);
	set_ipv4(&d->dst, 0);
	k = find_kept(p, now, d);
	if (!k)
		return false;
	d->src.w[3] = k->to_src;
	d->dst.w[3] = k->to_dst;
	d->sport = k->to_sport;
	d->dport = k->to_dport;
	d->out = k->out;
	__builtin_memcpy(d->dmac, k->dmac, sizeof(d->dmac));
	__builtin_memcpy(d->smac, k->smac, sizeof(d->smac));
	d->mtu = k->mtu;
	d->rule_in = k->rule_in;
	d->rule_out = k->rule_out;
	d->redirects = k->redirects;
	d->ethernet = k->ethernet;
	d->unresolved = false;
	sum_up(d, p);
	return true;
}

/* age is how long ago the decision was made that is kept at a place, at most keep_jiffies: what is no longer used is free. */
static __always_inline __u32 age(const struct kept *k, __u32 now)
{
	__u32 age = now - k->made;

	return !k->key.rest || k->key.rest >> 32 != epoch || age > keep_jiffies ? keep_jiffies : age;
}

/* keep remembers a decision in the first free place, or in place of the oldest. decided_in is the epoch from before it was
 * made: what it was made by may have changed since. */
static __always_inline void keep(const struct decision *d, const struct packet *p, __u32 now, __u32 decided_in)
{
	struct key key = key_of(p, decided_in);
	__u64 h = hash(&key, &p->flow);
	__u32 first = first_place(), at = 0, next;
	struct kept *k = 0, *other;
	struct kept_ipv6 *k6;

	for (int n = 0; n < PLACES; n++) {
		next = place(first, h, n);
		other = bpf_map_lookup_elem(&decisions, &next);
		if (other && (!k || age(other, now) > age(k, now))) {
			k = other;
			at = next;
		}
	}
	if (!k)
		return;
	if (p->flags & IPV6) {
		k6 = bpf_map_lookup_elem(&decisions_ipv6, &at);
		if (!k6)
			return;
		set_words(k6->src, &p->flow.src);
		set_words(k6->dst, &p->flow.dst);
		set_words(k6->to_src, &d->src);
		set_words(k6->to_dst, &d->dst);
	}
	k->key = key;
	k->made = now;
	k->to_src = d->src.w[3];
	k->to_dst = d->dst.w[3];
	k->to_sport = d->sport;
	k->to_dport = d->dport;
	k->out = d->out;
	__builtin_memcpy(k->dmac, d->dmac, sizeof(k->dmac));
	__builtin_memcpy(k->smac, d->smac, sizeof(k->smac));
	k->mtu = d->mtu;
	k->rule_in = d->rule_in;
	k->rule_out = d->rule_out;
	k->redirects = d->redirects;
	k->ethernet = d->ethernet;
}
