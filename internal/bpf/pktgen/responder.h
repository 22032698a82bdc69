/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The responder answers connections of the client, each segment from what stands in it. Its
 * own sequence numbers are keyed by addresses and ports, so that it need not remember
 * them, and a connection whose translation changes on the way gets no answer. */
#pragma once

#include "segment.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct responder_counters);
	__uint(max_entries, 1);
} responses SEC(".maps");

const volatile __u64 open_ports[65536 / 64]; /* a bit for each */

static __always_inline bool is_open(__be16 port)
{
	__u32 number = ntohs(port);

	return open_ports[number / 64] >> number % 64 & 1;
}

/* reply sends the request back; its token says whether the server is to close. */
static __always_inline int reply(struct xdp_md *ctx, const struct segment *s)
{
	bool close = s->token.sequence == htonl(CLOSE_SERVER);

	return answer(ctx, s, s->ack, s->seq + DATA, TCP_ACK | TCP_PSH | (close ? TCP_FIN : 0), false, &s->token);
}

/* is_ours reports whether a segment is a SYN as the client sends them, or of a connection
 * that was answered before, which the acknowledgement proves. All others to the open
 * ports are the kernel's, right or not: it checks those that it gets. A SYN with a partial
 * checksum comes from a kernel, as the client's are complete. */
static __always_inline bool is_ours(const struct segment *s, __u32 past)
{
	if (s->flags == TCP_SYN)
		return s->sound || !s->partial;
	return past == PAST_REQUEST || past == PAST_FIN || (s->data && past == PAST_SYN);
}

static __always_inline int respond_to(struct xdp_md *ctx, struct responder_counters *c, const struct segment *s)
{
	__u32 own = keyed(s->v6, s->saddr, s->daddr, (__u32)s->sport << 16 | s->dport), past = s->ack - own;

	if (!is_ours(s, past)) {
		c->passed++;
		return XDP_PASS;
	}
	if (!s->sound) {
		c->bad_checksum++;
		return XDP_DROP;
	}
	if (s->flags == TCP_SYN) {
		c->opened++;
		return answer(ctx, s, own, s->seq + 1, TCP_SYN | TCP_ACK, true, 0);
	}
	if (past == PAST_SYN) {
		c->answered++;
		return reply(ctx, s);
	}
	if (s->flags & TCP_RST) {
		c->reset++;
		return XDP_DROP;
	}
	if (!(s->flags & TCP_FIN)) /* the last acknowledgement */
		return XDP_DROP;
	c->closed++;
	return answer(ctx, s, s->ack, s->seq + 1, TCP_ACK | (past == PAST_REQUEST ? TCP_FIN : 0), false, 0);
}

static __always_inline int serve(struct xdp_md *ctx, bool v6)
{
	struct segment s = { .v6 = v6 };
	struct responder_counters *c;
	__u32 zero = 0;
	int verdict;

	if (parse_segment(&s, ctx) || !is_open(s.dport))
		return XDP_PASS;
	c = bpf_map_lookup_elem(&responses, &zero);
	if (!c)
		return XDP_ABORTED;
	verdict = respond_to(ctx, c, &s);
	if (verdict == XDP_ABORTED)
		c->no_room++;
	return verdict;
}

SEC("xdp")
int respond(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	return eth->h_proto == htons(ETH_P_IPV6) ? serve(ctx, true) : serve(ctx, false);
}
