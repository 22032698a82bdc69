/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the program counts, and where. */
#pragma once

#include "../include/flow.h"

/* Why conntrack or NAT gave a packet the verdict NF_DROP. */
enum {
	CAUSE_NONE,
	CAUSE_TABLE_FULL,
	CAUSE_INVALID,
	CAUSE_NOT_INSERTED,
	CAUSE_NAT_FAILED,
};

/* A place where packets of one kind are dropped. */
struct site {
	__u64 location;
	__u32 reason; /* enum skb_drop_reason of the running kernel */
	__u32 netns;  /* inode; 0 where the packet has none */
	__u32 protocol;
	__u32 cause;
};

enum {
	/* In protocol: an ethertype in the upper half, and below it, where that is IP
	 * and the header could be read, PROTOCOL_KNOWN and the IP protocol. */
	PROTOCOL_KNOWN = 1 << 8,

	WAYS = 4,
	SET_BITS = 9,
	SPILLED_SITES = 8192,
	FLOWS = 16384,
	STACKS = 4096,
	STACK_DEPTH = 32,
	EVENT_BYTES = 1 << 20,

	HEADER_BYTES = 128,   /* of a packet, from its IP header on */
	HEADER_KIND_BITS = 6, /* of places and reasons, which share what is kept in a window */
	HEADER_WINDOW = 30,   /* 2^30 ns are a little more than a second */
};

struct slot {
	struct site site;
	__u64 packets; /* 0: free */
};

struct set {
	struct slot way[WAYS];
};

/* A cache that is never emptied: a hash map's hashing and locking would cost several
 * times as much as all the rest. What finds no place in its set goes to spilled. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << SET_BITS);
	__type(key, __u32);
	__type(value, struct set);
} sites SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPILLED_SITES);
	__type(key, struct site);
	__type(value, __u64);
} spilled SEC(".maps");

/* What is true of a CPU alone. */
struct cpu {
	__u64 lost;        /* drops that found no place in spilled either */
	__u64 lost_events; /* drops for which the ring buffer had no room */
	__u64 new_flows;   /* flows put into the map, those evicted since included */
	__u64 lost_flows;
	__u64 lost_stacks;
	__u64 lost_headers; /* headers for which the ring buffer had no room */
	/* Between a function's return with NF_DROP and the packet's end: */
	__u64 condemned; /* the packet */
	__u64 condemned_ns;
	__u64 no_entry_ns; /* a connection could not be allocated */
	__u32 cause;
	__u32 pad;
};

/* What was noted longer ago is of another packet: one that ended otherwise, or an
 * entry that a program could not add. */
static __always_inline bool recent(__u64 ns)
{
	return bpf_ktime_get_ns() - ns < 100 * 1000 * 1000;
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

static __always_inline struct cpu *this_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

struct drop_flow {
	struct site site;
	__be32 saddr[4];
	__be32 daddr[4];
	__u16 sport;
	__u16 dport;
	__u32 ifindex;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS);
	__type(key, struct drop_flow);
	__type(value, __u64);
} flows SEC(".maps");

struct stack_key {
	struct site site;
	__u64 id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STACKS);
	__type(key, struct stack_key);
	__type(value, __u64);
} stack_counts SEC(".maps");

struct stack {
	__u64 frame[STACK_DEPTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, STACKS);
	__type(key, __u32);
	__type(value, struct stack);
} stacks SEC(".maps");

struct event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	struct site site;
	struct flow flow;
	__u32 ifindex;
	__u32 length; /* of the skb */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENT_BYTES);
} events SEC(".maps");

/* The beginning of a packet that was dropped. */
struct header {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	struct site site;
	__u32 ifindex;
	__u32 length; /* of bytes */
	unsigned char bytes[HEADER_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
	__type(value, struct header); /* for its BTF */
} headers SEC(".maps");

/* How many headers were kept in a window of time: of each kind, and behind them of all. */
struct window {
	__u64 number;
	__u32 kept;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, (1 << HEADER_KIND_BITS) + 1);
	__type(key, __u32);
	__type(value, struct window);
} windows SEC(".maps");
