/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the programs and their loader both know: mappings, interfaces, counters. */
#pragma once

#include "../include/kernel.h"

/* struct address is one of IPv6, or of IPv4 as ::ffff:a.b.c.d. */
struct address {
	__be32 w[4];
};

enum {
	MAPS = 1 << 0,     /* the address itself is mapped */
	SERVICES = 1 << 1, /* some of its protocols and ports are, by entries of their own */
	NEUTRAL = 1 << 2,  /* RFC 6296 */
};

/* struct mapping is plane.Mapping. */
struct mapping {
	struct address to;   /* without the bits that stay */
	struct address stay; /* the mask of these */
	__u32 roles;
	__u32 rule;
	__be16 port; /* 0: stays */
	__be16 adjust; /* what a word of the address takes up (NEUTRAL) */
	__u8 word;   /* of 16 bits: the first one that can, 3 or 4 */
	__u8 flags;
	__u16 pad;
};

struct service {
	struct address address;
	__be16 port; /* 0: all */
	__u8 protocol;
	__u8 pad;
};

struct prefix {
	__u32 length;
	struct address address;
};

enum {
	ROLE_INSIDE = 1u << 31,
};

enum {
	NO_ETHERNET = 1 << 0,
	REDIRECT = 1 << 1, /* its driver takes redirected frames */
	WANTS_XDP = 1 << 2, /* for those who read it: there was to be a program at XDP */
};

enum {
	RP_FILTER_OFF,
	RP_FILTER_STRICT,
	RP_FILTER_LOOSE,
};

struct interface {
	__u32 roles;
	__u8 rp_filter;
	__u8 flags;
	__u16 pad;
};

/* struct mac is the address that frames for this host have, by interface. */
struct mac {
	__u8 address[6];
	__u16 known;
};

struct count {
	__u64 packets, bytes;
};

/* What became of packets that the programs know, by reason; those of FORWARDED are counted by rule. */
enum reason {
	NO_REASON,
	FORWARDED,
	NEIGHBOUR_ASKED,    /* translated, and sent when the kernel has resolved the neighbour */
	TO_STACK_NEIGHBOUR, /* translated, and given to the stack: it has to resolve the neighbour */
	TO_STACK_ROUTE,     /* … no route, or one of another kind than unicast */
	TO_STACK_TTL,
	TO_STACK_MTU,
	TO_STACK_OPTIONS,   /* IPv4 options and hop-by-hop options are the stack's */
	TO_STACK_FRAGMENT,  /* others of the packet are, or have to be, or have to be cut */
	PASSED_HAIRPIN,     /* untouched: the host inside has no mapping */
	PASSED_LOCAL,       /* … translated, it is for this host */
	PASSED_INTERFACE,   /* … by the way out the programs are not attached */
	PASSED_RP_FILTER,
	PASSED_FRAGMENT,    /* … its first fragment was not seen */
	PASSED_UNMAPPABLE,  /* … an address that RFC 6296 cannot map */
	DROPPED_UNMAPPED,   /* half translated, and its source has no mapping (any more) */
	DROPPED_UNMAPPABLE, /* … one that gives it no address */
	DROPPED_HEADER,     /* no room for the header of the way out */
	REASONS,
};

/* struct about says whose the programs are. It stays as it is in all versions. */
struct about {
	__u32 version; /* of the maps that user space reads: rules, reasons */
	__u8 digest[64];
};

enum {
	MAPS_VERSION = 1,
};

enum {
	LEAST_MTU = 1280, /* RFC 8200, 5 */
	FRAGMENTS = 1 << 13,
};
