/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The client of whole TCP connections. The generator makes their SYNs, and the program on
 * its interface takes every further step when the packet before has come. What a
 * connection is to do next follows from the packet: the acknowledgement, less the number
 * that is keyed by the flow, is how far it got, and proves that the packet answers what
 * this flow has sent. The table of connections has only what a packet cannot: whether that
 * step was taken before, and when the SYN was sent. */
#pragma once

#include "segment.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct client_counters);
	__uint(max_entries, 1);
} client_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct handshake_times);
	__uint(max_entries, 1);
} handshakes SEC(".maps");

const volatile __be32 target[4]; /* IPv4: the first word */
const volatile __be16 target_port;
/* Flows come from consecutive addresses and ports, in the order of a load.Permutation. */
const volatile __be32 first_source[4];
const volatile __u32 source_count;
const volatile __u32 first_port, port_count;
const volatile __u32 order_start, order_step;
const volatile __u8 closing; /* enum closing */

/* What the acknowledgement is past the first sequence number of a round. */
enum {
	PAST_SYN = 1,
	PAST_REQUEST = PAST_SYN + DATA,
	PAST_FIN = PAST_REQUEST + 1,
	ROUND_STEP_SHIFT = 16, /* sequence numbers between two rounds of one flow */
};

enum {
	NOW_FOR = 32, /* SYNs with one reading of the clock, which costs as much as a packet */
};

static __always_inline __u32 clock(void) { return bpf_ktime_get_ns() >> TIME_SHIFT; }

static __always_inline __u32 stage_of(__u64 connection) { return connection & 0xff; }
static __always_inline __u16 round_of(__u64 connection) { return connection >> ROUND_SHIFT; }

/* flow_number is the place of a flow among all combinations, as packets.Flows counts
 * them; their number where it is none of them. */
static __always_inline __u32 flow_number(bool v6, const __be32 *addr, __be16 port)
{
	const int last = v6 ? 3 : 0;
	__u32 source = ntohl(addr[last]) - ntohl(first_source[last]), p = ntohs(port) - first_port;

	for (int i = 0; i < last; i++)
		if (addr[i] != first_source[i])
			return source_count * port_count;
	if (source >= source_count || p >= port_count)
		return source_count * port_count;
	return p * source_count + source;
}

static __always_inline __u32 initial(bool v6, const __be32 *addr, __be16 port, __u16 round)
{
	return keyed(v6, addr, addr, port) + ((__u32)round << ROUND_STEP_SHIFT);
}

/* begin marks flow number's connection as begun. */
static __always_inline int begin(__u32 number)
{
	__u64 *connection = bpf_map_lookup_elem(&connections, &number);
	__u64 before;

	if (!connection)
		return -1;
	if (!generator.now_for) {
		generator.now_for = NOW_FOR;
		generator.now = clock();
	}
	generator.now_for--;
	before = __sync_lock_test_and_set(connection, (__u64)generator.now << SENT_SHIFT | (__u64)(__u16)generator.sequence << ROUND_SHIFT | STAGE_SYN);
	if (stage_of(before) >= STAGE_SYN && stage_of(before) <= STAGE_CLOSING)
		generator.overtaken++;
	return 0;
}

/* next_in_order goes on to the next flow, and behind the last one to the next round. */
static __always_inline void next_in_order(void)
{
	__u32 all = source_count * port_count, left = all - order_step;

	generator.flow = generator.flow >= left ? generator.flow - left : generator.flow + order_step;
	if (generator.flow == order_start)
		generator.sequence++;
}

static __always_inline int make_syn(struct xdp_md *ctx, bool v6)
{
	__u32 number = generator.flow;
	__be32 saddr[4] = { first_source[0], first_source[1], first_source[2], first_source[3] };
	__be32 daddr[4] = { target[0], target[1], target[2], target[3] };
	struct outgoing o = {
		.v6 = v6, .syn = true, .flags = TCP_SYN, .sport = htons(first_port + number / source_count),
		.dport = target_port, .saddr = saddr, .daddr = daddr,
	};
	__u32 *mac;

	saddr[v6 ? 3 : 0] = htonl(ntohl(saddr[v6 ? 3 : 0]) + number % source_count);
	o.seq = initial(v6, saddr, o.sport, generator.sequence);
	if (begin(number) || write_segment(ctx, &o))
		return XDP_ABORTED;
	mac = (void *)(long)ctx->data;
	if ((void *)(mac + 3) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	for (int i = 0; i < 3; i++)
		mac[i] = mac_words[i];
	next_in_order();
	generator.sent++;
	return bpf_redirect(out_ifindex, 0);
}

/* initiate begins the next connection. */
SEC("xdp")
int initiate(struct xdp_md *ctx)
{
	if (generator.sent >= generator.limit)
		return XDP_DROP;
	return ipv6 ? make_syn(ctx, true) : make_syn(ctx, false);
}

static __always_inline void record_handshake(__u32 took)
{
	struct handshake_times *times;
	__u32 zero = 0, shift = 0;

	times = bpf_map_lookup_elem(&handshakes, &zero);
	if (!times)
		return;
#pragma unroll
	for (int bit = 16; bit; bit /= 2)
		if (took >> shift >> bit >= 8)
			shift += bit;
	times->buckets[(shift * 8 + (took >> shift)) & (TIME_BUCKETS - 1)]++;
}

/* advance takes the connection to a stage; false where another packet was faster. */
static __always_inline bool advance(__u64 *connection, __u64 from, enum stage to)
{
	return __sync_val_compare_and_swap(connection, from, (from & ~0xffULL) | to) == from;
}

static __always_inline bool from_target(const struct segment *s)
{
	for (int i = 0; i < (s->v6 ? 4 : 1); i++)
		if (s->saddr[i] != target[i])
			return false;
	return s->sport == target_port;
}

static __always_inline int misdelivered(struct client_counters *c, const struct segment *s, __u32 number)
{
	c->misdelivered++;
	keep_stray(s->v6, s->saddr, s->daddr, &s->sport, number);
	return XDP_DROP;
}

/* established answers a SYN-ACK with the request. */
static __always_inline int established(struct xdp_md *ctx, struct client_counters *c, const struct segment *s, __u64 *connection,
				       __u64 was, __u32 number)
{
	const struct token request = { .run = run_id, .flow = htonl(number), .sequence = htonl(closing == CLOSE_SERVER) };

	if (!advance(connection, was, STAGE_REQUEST)) {
		c->duplicated++;
		return XDP_DROP;
	}
	c->established++;
	if (!(number & (TIME_SAMPLE - 1)))
		record_handshake(clock() - (__u32)(was >> SENT_SHIFT));
	return answer(ctx, s, s->ack, s->seq + 1, TCP_ACK | TCP_PSH, false, &request);
}

/* answered closes the connection after the reply, if it is to be closed. */
static __always_inline int answered(struct xdp_md *ctx, struct client_counters *c, const struct segment *s, __u64 *connection, __u64 was)
{
	bool closes = closing == CLOSE_CLIENT || closing == CLOSE_SERVER;
	__u32 ack = s->seq + DATA + (closing == CLOSE_SERVER);

	if (!advance(connection, was, closes ? STAGE_CLOSING : STAGE_COMPLETE)) {
		c->duplicated++;
		return XDP_DROP;
	}
	c->answered++;
	if (!closes)
		c->complete++;
	if (closing == CLOSE_NONE)
		return XDP_DROP;
	return answer(ctx, s, s->ack, ack, TCP_ACK | (closes ? TCP_FIN : TCP_RST), false, 0);
}

/* closed acknowledges the server's FIN; where the server closed first, its ACK is the end. */
static __always_inline int closed(struct xdp_md *ctx, struct client_counters *c, const struct segment *s, __u64 *connection, __u64 was)
{
	if (!advance(connection, was, STAGE_COMPLETE)) {
		c->duplicated++;
		return XDP_DROP;
	}
	c->complete++;
	if (closing == CLOSE_SERVER)
		return XDP_DROP;
	return answer(ctx, s, s->ack, s->seq + 1, TCP_ACK, false, 0);
}

static __always_inline int reset(struct client_counters *c, __u64 *connection, __u64 was)
{
	__u32 stage = stage_of(was);

	if (stage < STAGE_SYN || stage > STAGE_CLOSING || !advance(connection, was, STAGE_RESET))
		c->late++;
	else
		c->resets[stage]++;
	return XDP_DROP;
}

/* awaited is the stage that an acknowledgement belongs to; 0 where it is none. */
static __always_inline __u32 awaited(__u32 past)
{
	switch (past) {
	case PAST_SYN:
		return STAGE_SYN;
	case PAST_REQUEST:
		return STAGE_REQUEST;
	case PAST_FIN:
		return STAGE_CLOSING;
	}
	return STAGE_UNUSED;
}

/* fits reports whether a segment is what a connection waits for in a stage, by its flags
 * and by whether it has data. */
static __always_inline bool fits(const struct segment *s, __u32 stage)
{
	bool fin = s->flags & TCP_FIN;

	switch (stage) {
	case STAGE_SYN:
		return s->flags == (TCP_SYN | TCP_ACK);
	case STAGE_REQUEST:
		return s->data && fin == (closing == CLOSE_SERVER);
	}
	return !s->data && fin == (closing == CLOSE_CLIENT);
}

static __always_inline int step(struct xdp_md *ctx, struct client_counters *c, const struct segment *s, __u64 *connection, __u32 number)
{
	__u64 was = *(volatile __u64 *)connection;
	__u32 past = s->ack - initial(s->v6, s->daddr, s->dport, 0);
	__u16 round = past >> ROUND_STEP_SHIFT;
	__u32 stage = s->flags & TCP_ACK ? awaited(past & 0xffff) : STAGE_UNUSED;
	bool proven = stage && stage_of(was) && round <= round_of(was), right = from_target(s);

	if (!proven && !right)
		return XDP_PASS;
	if (!s->sound) {
		c->bad_checksum++;
		return XDP_DROP;
	}
	if (right && s->flags & TCP_RST && !(s->flags & TCP_ACK)) /* of one that knows no such connection: it proves nothing */
		return reset(c, connection, was);
	if (!proven || !right)
		return misdelivered(c, s, number);
	if (round != round_of(was) || stage_of(was) > STAGE_COMPLETE) {
		c->late++;
		return XDP_DROP;
	}
	if (s->flags & TCP_RST)
		return reset(c, connection, was);
	if (!fits(s, stage)) {
		c->unexpected++;
		return XDP_DROP;
	}
	if (s->data && (s->token.run != run_id || s->token.flow != htonl(number)))
		return misdelivered(c, s, number);
	if (stage != stage_of(was)) {
		c->duplicated++;
		return XDP_DROP;
	}
	switch (stage) {
	case STAGE_SYN:
		return established(ctx, c, s, connection, was, number);
	case STAGE_REQUEST:
		return answered(ctx, c, s, connection, was);
	}
	return closed(ctx, c, s, connection, was);
}

static __always_inline int client(struct xdp_md *ctx, bool v6)
{
	struct segment s = { .v6 = v6 };
	struct client_counters *c;
	__u64 *connection;
	__u32 number, zero = 0;
	int verdict;

	if (parse_segment(&s, ctx))
		return XDP_PASS;
	number = flow_number(v6, s.daddr, s.dport);
	connection = bpf_map_lookup_elem(&connections, &number);
	if (!connection)
		return XDP_PASS;
	c = bpf_map_lookup_elem(&client_counts, &zero);
	if (!c)
		return XDP_ABORTED;
	verdict = step(ctx, c, &s, connection, number);
	if (verdict == XDP_ABORTED)
		c->no_room++;
	return verdict;
}

SEC("xdp")
int client4(struct xdp_md *ctx)
{
	return client(ctx, false);
}

SEC("xdp")
int client6(struct xdp_md *ctx)
{
	return client(ctx, true);
}
