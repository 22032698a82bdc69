/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the programs and their loader both know. */
#pragma once

#include "../include/kernel.h"

enum {
	CYCLE_MAX = 64, /* a power of two */
	TEMPLATE_WORDS = 12,
	WINDOW = 64,    /* packet.Window */
	TCP_FIN = 0x01,
	TCP_SYN = 0x02,
	TCP_RST = 0x04,
	TCP_PSH = 0x08,
	TCP_ACK = 0x10,
};

struct flow4 {
	__be32 saddr, daddr;
	__be16 sport, dport;
};

struct flow6 {
	__be32 saddr[4], daddr[4];
	__be16 sport, dport;
};

/* token is packet.Token. */
struct token {
	__be32 run, flow, sequence;
};

/* template is a frame's beginning, up to the token's end, with zeros where packets
 * differ: lengths, addresses, ports, checksums, TCP's numbers and flags, and in the
 * token flow and sequence. */
struct template {
	__u64 words[TEMPLATE_WORDS];
	__u32 length;
	__u32 l3, l4, token; /* where they begin */
	__u32 ip_sum;        /* of the IPv4 header */
	__u32 transport_sum; /* of what lies between l4 and length, and of the protocol */
};

/* generator_state belongs to one worker. */
struct generator_state {
	__u64 sent;
	__u64 octets;
	__u64 limit; /* set by user space: maximum number of frames to send */
	__u64 start; /* of an even run's schedule, set by user space: ns of CLOCK_MONOTONIC */
	__u64 late;  /* ns after it was due the latest packet left */
	__u64 behind; /* the last packet */
	__u32 flow;  /* less first_flow */
	__u32 sequence;
	__u32 length_at;
	__u32 flags_at;
	__u32 now;       /* of connections: the time of the last ones, as in struct connection */
	__u32 now_for;   /* so many more are given this time; user space sets 0 */
	__u64 overtaken; /* connections that had not ended when their addresses were needed again */
};

struct track {
	struct bpf_spin_lock lock;
	__u32 next;
	__u64 seen;
};

struct sink_counters {
	__u64 received;
	__u64 octets;
	__u64 reordered;
	__u64 duplicated;
	__u64 late;
	__u64 misdelivered;
	__u64 bad_ip_checksum;
	__u64 bad_checksum;
	__u64 partial_checksum;
	__u64 other;
};

/* stray is a misdelivered packet. */
struct stray {
	__be32 saddr[4], daddr[4]; /* IPv4: the first ones */
	__be16 sport, dport;
	__u32 flow;
	__u32 seen;
};

enum expectation {
	EXPECT_ANY,
	EXPECT_SAME,   /* as it was sent */
	EXPECT_IN,     /* inside net/mask, or from port_min to port_max */
	EXPECT_MAPPED, /* an address: net, and behind the mask as it was sent */
};

/* expected is one end of a packet after translation. */
struct expected {
	__u8 address, port; /* enum expectation */
	__u16 port_min, port_max;
	__be32 net[4], mask[4];
};

/* A connection's record is one word, which the generator, the client and user space
 * change by compare-and-swap: stage, round << ROUND_SHIFT, and behind SENT_SHIFT when its
 * SYN was sent, in units of 2^TIME_SHIFT ns. */
enum {
	ROUND_SHIFT = 8,
	SENT_SHIFT = 32,
	TIME_SHIFT = 10,
};

/* What a connection waits for, and its ends. The client follows this order. */
enum stage {
	STAGE_UNUSED,
	STAGE_SYN,     /* for a SYN-ACK */
	STAGE_REQUEST, /* for the reply */
	STAGE_CLOSING, /* for the FIN-ACK, or the ACK of its FIN */
	STAGE_COMPLETE,
	STAGE_RESET,
	STAGE_EXPIRED,
};

/* Who closes a connection, and how. */
enum closing {
	CLOSE_CLIENT,
	CLOSE_SERVER,
	CLOSE_RESET, /* the client */
	CLOSE_NONE,  /* nobody: it stays open */
};

struct client_counters {
	__u64 established;
	__u64 answered;
	__u64 complete;
	__u64 resets[STAGE_CLOSING + 1]; /* by what the connection waited for */
	__u64 duplicated;
	__u64 late;
	__u64 unexpected;
	__u64 misdelivered;
	__u64 bad_checksum;
	__u64 no_room; /* frames too short for the answer, whose buffers are full */
};

struct responder_counters {
	__u64 opened;
	__u64 answered;
	__u64 closed;
	__u64 reset;
	__u64 passed; /* segments to its ports that it did not answer */
	__u64 bad_checksum;
	__u64 no_room;
};

enum {
	TIME_BUCKETS = 256,
	TIME_SAMPLE = 16, /* the handshake of one connection in so many is timed */
};

/* handshake_times is a histogram of times in units of 2^TIME_SHIFT ns: each power of two
 * from 16 on has eight buckets. */
struct handshake_times {
	__u64 buckets[TIME_BUCKETS];
};
