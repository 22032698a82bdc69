/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The receivers take the packets of a run, and no others, from an interface, and
 * count what became of each. */
#pragma once

#include "../include/csum.h"
#include "pktgen.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct track);
	__uint(max_entries, 1);
} tracks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct sink_counters);
	__uint(max_entries, 1);
} counters SEC(".maps");

/* learned has the tuples of replies to what arrived, struct flow4 or struct flow6 by the flow's
 * number; zeros where nothing has. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct flow6));
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
} learned SEC(".maps");

const volatile bool learns;

/* Several CPUs may receive packets of one flow at the same time. The lock costs as
 * much as the rest of the receiver, so it is left out where NAPI serialises. */
const volatile bool concurrent;
const volatile struct expected expect_source;
const volatile struct expected expect_destination;
const volatile bool expects; /* anything of the two */
const volatile bool verify_checksums;

/* A frame under way through a receiver. The first two are constants in each of the
 * receivers, so that the compiler leaves out what is for the others. */
struct frame {
	bool v6;
	__u8 proto;
	void *l3, *l4;
	const __be32 *saddr, *daddr;
	__u32 transport; /* length of the transport header and all behind it */
	const struct token *token;
};

static __always_inline int parse_ipv4(struct frame *f, void *end)
{
	struct iphdr *ip = f->l3;
	__u32 header;

	if ((void *)(ip + 1) > end || ip->protocol != f->proto)
		return -1;
	if (ip->version_ihl != 0x45 || ip->frag_off & htons(0x3fff)) /* options or a fragment: not as sent */
		return -1;
	header = sizeof(*ip);
	if (ntohs(ip->tot_len) < header)
		return -1;
	f->transport = ntohs(ip->tot_len) - header;
	f->saddr = &ip->saddr;
	f->daddr = &ip->daddr;
	f->l4 = ip + 1;
	return 0;
}

static __always_inline int parse_ipv6(struct frame *f, void *end)
{
	struct ipv6hdr *ip = f->l3;

	if ((void *)(ip + 1) > end || ip->nexthdr != f->proto) /* an extension header: not as sent */
		return -1;
	if ((ip->version_class_flow & htonl(0xf0000000)) != htonl(6u << 28))
		return -1;
	f->transport = ntohs(ip->payload_len);
	f->saddr = ip->saddr;
	f->daddr = ip->daddr;
	f->l4 = ip + 1;
	return 0;
}

/* parse_ip finds the transport header; -1 where the packet is not of f's protocols. */
static __always_inline int parse_ip(struct frame *f, void *data, void *end)
{
	__be16 *type = data + 12;

	if ((void *)(type + 3) > end)
		return -1;
	if (*type == htons(ETH_P_8021Q) || *type == htons(ETH_P_8021AD))
		type += 2;
	f->l3 = type + 1;
	if (*type != (f->v6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP)))
		return -1;
	return f->v6 ? parse_ipv6(f, end) : parse_ipv4(f, end);
}

/* parse finds the token of a packet of this run; -1 for all other packets. */
static __always_inline int parse(struct frame *f, void *data, void *end)
{
	__u32 header = f->proto == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr);

	if (parse_ip(f, data, end))
		return -1;
	f->token = f->l4 + header;
	if (f->transport < header + sizeof(struct token) || (void *)(f->token + 1) > end)
		return -1;
	if (f->proto == IPPROTO_TCP && ((struct tcphdr *)f->l4)->doff_res >> 4 != sizeof(struct tcphdr) / 4)
		return -1; /* options: not as sent */
	return f->token->run == run_id ? 0 : -1;
}

static __always_inline bool address_as_expected(const volatile struct expected *want, const __be32 *got, const __be32 *sent,
						int words)
{
	__be32 host;

	for (int i = 0; i < words; i++) {
		if (want->address == EXPECT_SAME) {
			if (got[i] != sent[i])
				return false;
			continue;
		}
		host = want->address == EXPECT_MAPPED ? sent[i] & ~want->mask[i] : got[i] & ~want->mask[i];
		if (got[i] != (want->net[i] | host))
			return false;
	}
	return true;
}

static __always_inline bool as_expected(const volatile struct expected *want, const __be32 *got, const __be32 *sent, int words,
					__be16 got_port, __be16 sent_port)
{
	if (want->address != EXPECT_ANY && !address_as_expected(want, got, sent, words))
		return false;
	if (want->port == EXPECT_SAME)
		return got_port == sent_port;
	return want->port == EXPECT_ANY || (ntohs(got_port) >= want->port_min && ntohs(got_port) <= want->port_max);
}

/* delivered compares addresses and ports with what is expected of this flow. */
static __always_inline bool delivered(const struct frame *f, const void *flow)
{
	const struct flow4 *flow4 = flow;
	const struct flow6 *flow6 = flow;
	const __be16 *ports = f->l4;

	if (f->v6)
		return as_expected(&expect_source, f->saddr, flow6->saddr, 4, ports[0], flow6->sport) &&
		       as_expected(&expect_destination, f->daddr, flow6->daddr, 4, ports[1], flow6->dport);
	return as_expected(&expect_source, f->saddr, &flow4->saddr, 1, ports[0], flow4->sport) &&
	       as_expected(&expect_destination, f->daddr, &flow4->daddr, 1, ports[1], flow4->dport);
}

/* observe_behind takes a sequence number that is less than the next one expected. */
static __always_inline __u64 *observe_behind(struct sink_counters *c, struct track *t, __u32 sequence)
{
	__u32 age = t->next - 1 - sequence;
	__u64 bit = 1ULL << (age & (WINDOW - 1));

	if (age >= WINDOW)
		return &c->late;
	if (t->seen & bit)
		return &c->duplicated;
	t->seen |= bit;
	return &c->reordered;
}

/* observe does what packet.Track.Observe says. */
static __always_inline void observe(struct sink_counters *c, struct track *t, __u32 sequence)
{
	__u64 *unusual = 0;
	__u32 ahead;

	if (concurrent)
		bpf_spin_lock(&t->lock);
	ahead = sequence - t->next;
	if ((__s32)ahead < 0) {
		unusual = observe_behind(c, t, sequence);
	} else {
		t->seen = ahead >= WINDOW - 1 ? 1 : t->seen << (ahead + 1) | 1;
		t->next = sequence + 1;
	}
	if (concurrent)
		bpf_spin_unlock(&t->lock);
	if (unusual)
		*unusual += 1;
}

static __always_inline __u64 pseudo_header(const struct frame *f)
{
	__u64 sum = htons(f->proto) + htons(f->transport);

	for (int i = 0; i < (f->v6 ? 4 : 1); i++)
		sum += (__u64)f->saddr[i] + f->daddr[i];
	return sum;
}

static __always_inline __u64 sum_words(__u64 sum, const __u32 *at, int count)
{
#pragma unroll
	for (int i = 0; i < count; i++)
		sum += at[i];
	return sum;
}

/* sum_bytes adds by a helper, which takes 512 bytes at most, and costs about as much
 * as 64 bytes do in sum_words. */
static __always_inline __u64 sum_bytes(__u64 sum, void *at, int count, int size)
{
#pragma unroll
	for (int i = 0; i < count; i++)
		sum += bpf_csum_diff(0, 0, at + i * size, size, 0);
	return sum;
}

/* SUM_PART adds what one bit of length stands for. Its place follows from the bits
 * above it, so that the verifier finds the same state behind it whether the bit is
 * set or not, and need not follow each length on its own. */
#define SUM_PART(bit, add)                                         \
	if (length & (bit)) {                                      \
		part = at + (length & (0xfff & ~(2 * (bit) - 1))); \
		if (part + (bit) > end)                            \
			return -1;                                 \
		sum = add;                                         \
	}

/* sum_blocks adds the blocks of 64 bytes at the start of length bytes. It is not
 * inlined, for a call costs registers also where it is not made. */
static __attribute__((noinline)) __s64 sum_blocks(void *at, __u32 length, void *end)
{
	__u64 sum = 0;
	void *part;

	if (length > 0xfff)
		return -1;
	SUM_PART(2048, sum_bytes(sum, part, 4, 512))
	SUM_PART(1024, sum_bytes(sum, part, 2, 512))
	SUM_PART(512, sum_bytes(sum, part, 1, 512))
	SUM_PART(256, sum_bytes(sum, part, 1, 256))
	SUM_PART(128, sum_bytes(sum, part, 1, 128))
	SUM_PART(64, sum_bytes(sum, part, 1, 64))
	return sum;
}

/* sum_rest adds length bytes, fewer than 4096; -1 where they are not all there. */
static __always_inline __s64 sum_rest(__u64 sum, void *at, __u32 length, void *end)
{
	__s64 blocks;
	void *part;

	if (length >= 64) {
		blocks = sum_blocks(at, length, end);
		if (blocks < 0)
			return -1;
		sum += blocks;
	}
	if (length & 0x38) {
		SUM_PART(32, sum_words(sum, part, 8))
		SUM_PART(16, sum_words(sum, part, 4))
		SUM_PART(8, sum_words(sum, part, 2))
	}
	SUM_PART(4, sum_words(sum, part, 1))
	SUM_PART(2, sum + *(__u16 *)part)
	SUM_PART(1, sum + htons(*(__u8 *)part << 8))
	return sum;
}

/* sum_transport adds the transport header, the token and what follows. */
static __always_inline __s64 sum_transport(const struct frame *f, void *end)
{
	const int udp = (sizeof(struct udphdr) + sizeof(struct token)) / 4;
	const int tcp = (sizeof(struct tcphdr) + sizeof(struct token)) / 4;
	__u64 sum = sum_words(0, f->l4, udp);

	if (f->proto != IPPROTO_TCP)
		return sum_rest(sum, f->l4 + udp * 4, f->transport - udp * 4, end);
	sum = sum_words(sum, f->l4 + udp * 4, tcp - udp);
	return sum_rest(sum, f->l4 + tcp * 4, f->transport - tcp * 4, end);
}

/* fault is the counter of what is wrong with a packet; null where nothing is. */
static __always_inline __u64 *fault(struct sink_counters *c, const struct frame *f, void *end)
{
	const struct udphdr *udp = f->l4;
	const struct tcphdr *tcp = f->l4;
	__u16 check = f->proto == IPPROTO_TCP ? tcp->check : udp->check;
	__u64 pseudo = pseudo_header(f);
	__s64 sum;

	if (!f->v6 && !csum_ok(sum_words(0, f->l3, sizeof(struct iphdr) / 4)))
		return &c->bad_ip_checksum;
	if (f->proto == IPPROTO_UDP) {
		if (udp->len != htons(f->transport)) /* no stack takes it (udp_rcv) */
			return &c->bad_checksum;
		if (!check) /* none, which RFC 768 allows, and RFC 8200, section 8.1, does not */
			return f->v6 ? &c->bad_checksum : 0;
	}
	sum = sum_transport(f, end);
	if (sum >= 0 && csum_ok(pseudo + sum))
		return 0;
	/* A sum of the pseudo header alone is what a network card would have completed. */
	return check == csum_fold(pseudo) ? &c->partial_checksum : &c->bad_checksum;
}

/* The first misdelivered packet on each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct stray);
	__uint(max_entries, 1);
} strays SEC(".maps");

static __always_inline void keep_stray(bool v6, const __be32 *saddr, const __be32 *daddr, const __be16 *ports, __u32 flow)
{
	__u32 zero = 0;
	struct stray *s = bpf_map_lookup_elem(&strays, &zero);

	if (!s || s->seen)
		return;
	s->seen = 1;
	s->flow = flow;
	s->sport = ports[0];
	s->dport = ports[1];
	for (int i = 0; i < (v6 ? 4 : 1); i++) {
		s->saddr[i] = saddr[i];
		s->daddr[i] = daddr[i];
	}
}

/* learn keeps the tuple of a reply: what arrived, turned round. */
static __always_inline void learn(const struct frame *f, __u32 flow)
{
	const __be16 *ports = f->l4;
	struct flow4 *flow4;
	struct flow6 *flow6;
	void *at = bpf_map_lookup_elem(&learned, &flow);

	if (!at)
		return;
	if (!f->v6) {
		flow4 = at;
		*flow4 = (struct flow4){ .saddr = *f->daddr, .daddr = *f->saddr, .sport = ports[1], .dport = ports[0] };
		return;
	}
	flow6 = at;
	for (int i = 0; i < 4; i++) {
		flow6->saddr[i] = f->daddr[i];
		flow6->daddr[i] = f->saddr[i];
	}
	flow6->sport = ports[1];
	flow6->dport = ports[0];
}

static __always_inline int receive(struct xdp_md *ctx, bool v6, __u8 proto)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame f = { .v6 = v6, .proto = proto };
	struct sink_counters *c;
	struct track *t;
	__u32 zero = 0, number;
	__u64 *wrong;
	void *flow;

	c = bpf_map_lookup_elem(&counters, &zero);
	if (!c)
		return XDP_ABORTED;
	if (parse(&f, data, end)) {
		c->other++;
		return XDP_PASS;
	}
	number = ntohl(f.token->flow);
	t = bpf_map_lookup_elem(&tracks, &number);
	if (!t) { /* no flow of this run, and so no packet of it */
		c->other++;
		return XDP_PASS;
	}
	if (expects) {
		flow = bpf_map_lookup_elem(&flows, &number);
		if (!flow || !delivered(&f, flow)) {
			c->misdelivered++;
			keep_stray(f.v6, f.saddr, f.daddr, f.l4, number);
			return XDP_DROP;
		}
	}
	if (verify_checksums) {
		wrong = fault(c, &f, end);
		if (wrong) {
			++*wrong;
			return XDP_DROP;
		}
	}
	if (learns)
		learn(&f, number);
	c->received++;
	c->octets += end - data;
	observe(c, t, ntohl(f.token->sequence));
	return XDP_DROP;
}

SEC("xdp")
int sink_udp4(struct xdp_md *ctx)
{
	return receive(ctx, false, IPPROTO_UDP);
}

SEC("xdp")
int sink_udp6(struct xdp_md *ctx)
{
	return receive(ctx, true, IPPROTO_UDP);
}

SEC("xdp")
int sink_tcp4(struct xdp_md *ctx)
{
	return receive(ctx, false, IPPROTO_TCP);
}

SEC("xdp")
int sink_tcp6(struct xdp_md *ctx)
{
	return receive(ctx, true, IPPROTO_TCP);
}

const volatile __be16 counted; /* EtherType */

/* count is the minimal receiver: it recognises frames by their EtherType. */
SEC("xdp")
int count(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct sink_counters *c;
	__u32 zero = 0;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end || eth->h_proto != counted)
		return XDP_PASS;
	c = bpf_map_lookup_elem(&counters, &zero);
	if (!c)
		return XDP_ABORTED;
	c->received++;
	return XDP_DROP;
}

/* pass lets every frame through. A veth takes redirected frames only where its
 * peer has a program or NAPI (veth_xdp_xmit, drivers/net/veth.c). */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
