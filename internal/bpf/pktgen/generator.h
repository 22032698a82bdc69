/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The generator runs on live frames (BPF_PROG_TEST_RUN), which come back to it with
 * whatever the receiver wrote into them: it rewrites every byte from the Ethernet
 * header to the token. The bytes after the token are zero, and nothing on the way
 * changes them. Each worker has its own copy of these variables. */
#pragma once

#include "../include/csum.h"
#include "pktgen.h"

const volatile struct template template;
const volatile __u32 first_flow;
const volatile __u32 flow_count;
const volatile __u16 lengths[CYCLE_MAX]; /* frames without FCS; the first one is the greatest */
const volatile __u32 length_count;
const volatile __u8 tcp_flags[CYCLE_MAX];
const volatile __u32 tcp_flags_count;
/* Between two packets of an even run, in ns / 1024; 0 sends at once. */
const volatile __u64 interval;

/* No other CPU writes these, and user space reads them while the program runs. */
struct generator_state generator;

static __always_inline __u32 cycle(__u32 *at, __u32 count)
{
	__u32 now = *at;

	*at = now + 1 == count ? 0 : now + 1;
	return now;
}

/* put_template writes all headers, but for the last bytes that do not fill a word:
 * those belong to the token's sequence number, which is written later. */
static __always_inline void put_template(void *at)
{
	const __u32 length = template.length;
	__u64 *word = at;

#pragma unroll
	for (__u32 i = 0; i < TEMPLATE_WORDS; i++)
		if ((i + 1) * sizeof(*word) <= length)
			word[i] = template.words[i];
}

/* put_ipv4 fills in what differs between packets, and gives the sum of addresses. */
static __always_inline __u64 put_ipv4(struct iphdr *ip, const struct flow4 *flow, __u16 length)
{
	__u64 addresses = (__u64)flow->saddr + flow->daddr;

	ip->tot_len = htons(length);
	ip->saddr = flow->saddr;
	ip->daddr = flow->daddr;
	ip->check = ~csum_fold(template.ip_sum + addresses + htons(length));
	return addresses;
}

static __always_inline __u64 put_ipv6(struct ipv6hdr *ip, const struct flow6 *flow, __u16 payload)
{
	__u64 addresses = 0;

	ip->payload_len = htons(payload);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		ip->saddr[i] = flow->saddr[i];
		ip->daddr[i] = flow->daddr[i];
		addresses += (__u64)flow->saddr[i] + flow->daddr[i];
	}
	return addresses;
}

static __always_inline void put_udp(struct udphdr *udp, __be32 ports, __u16 length, __u64 sum)
{
	*(__be32 *)udp = ports;
	udp->len = htons(length);
	udp->check = csum_udp(csum_fold(sum + ports + htons(length)));
}

/* put_tcp writes a segment at the start of its flow's sequence space. It does not
 * advance, as a retransmission does not. */
static __always_inline void put_tcp(struct tcphdr *tcp, __be32 ports, __u32 flow, __u64 sum)
{
	__u8 flags = tcp_flags[generator.flags_at & (CYCLE_MAX - 1)];
	__be32 seq = htonl(flow * 0x9e3779b1 + !(flags & TCP_SYN));
	__be32 ack = flags & TCP_ACK ? htonl(1) : 0;

	*(__be32 *)tcp = ports;
	tcp->seq = seq;
	tcp->ack_seq = ack;
	tcp->flags = flags;
	tcp->check = ~csum_fold(sum + ports + seq + ack + htons(flags));
}

static __always_inline __u64 put_token(struct token *token, __u32 flow)
{
	__be32 number = htonl(flow), sequence = htonl(generator.sequence);

	token->flow = number;
	token->sequence = sequence;
	return (__u64)number + sequence;
}

/* next_flow goes on to the next packet's flow, and behind the last one to the next
 * sequence number. */
static __always_inline void next_flow(void)
{
	if (++generator.flow < flow_count)
		return;
	generator.flow = 0;
	generator.sequence++;
	if (protocol == IPPROTO_TCP)
		cycle(&generator.flags_at, tcp_flags_count);
}

/* due reports whether it is time for the next packet of an even run. Until then frames are dropped, by
 * which the kernel calls again, some twenty times in a microsecond. */
static __always_inline bool due(void)
{
	__s64 after;

	if (!interval || !generator.start)
		return true;
	after = bpf_ktime_get_ns() - generator.start - ((generator.sent * interval) >> 10);
	if (after < 0)
		return false;
	generator.behind = after;
	if ((__u64)after > generator.late)
		generator.late = after;
	return true;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	__u32 number = first_flow + generator.flow;
	__u32 length = lengths[0], transport;
	const struct flow4 *flow4;
	const struct flow6 *flow6;
	void *flow, *data, *l4;
	__be32 ports;
	__u64 sum;

	if (generator.sent >= generator.limit || !due())
		return XDP_DROP;
	flow = bpf_map_lookup_elem(&flows, &number);
	if (!flow)
		return XDP_ABORTED;
	if (length_count > 1) {
		length = lengths[cycle(&generator.length_at, length_count) & (CYCLE_MAX - 1)];
		if (bpf_xdp_adjust_tail(ctx, (int)length - lengths[0]))
			return XDP_ABORTED;
	}
	data = (void *)(long)ctx->data;
	if (data + template.length > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	put_template(data);
	l4 = data + template.l4;
	transport = length - template.l4;
	if (ipv6) {
		flow6 = flow;
		sum = put_ipv6(data + template.l3, flow6, transport);
		ports = *(__be32 *)&flow6->sport;
	} else {
		flow4 = flow;
		sum = put_ipv4(data + template.l3, flow4, length - template.l3);
		ports = *(__be32 *)&flow4->sport;
	}
	sum += template.transport_sum + htons(transport) + put_token(data + template.token, number);
	if (protocol == IPPROTO_TCP)
		put_tcp(l4, ports, number, sum);
	else
		put_udp(l4, ports, transport, sum);
	next_flow();
	generator.sent++;
	generator.octets += length;
	return bpf_redirect(out_ifindex, 0);
}

/* bare sends the template as it is: the least that a generator can do. */
SEC("xdp")
int bare(struct xdp_md *ctx)
{
	if (generator.sent >= generator.limit)
		return XDP_DROP;
	generator.sent++;
	return bpf_redirect(out_ifindex, 0);
}
