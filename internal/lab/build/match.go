package build

import (
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
)

// l4DstPort is the offset of the destination port in the headers of TCP and UDP.
const l4DstPort = 2

func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

// l4proto is: meta l4proto PROTO
func l4proto(protocol string) []expr.Any {
	number := byte(unix.IPPROTO_TCP)
	if protocol == "udp" {
		number = unix.IPPROTO_UDP
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals([]byte{number})}
}

// port is: meta l4proto PROTO th dport PORT
func port(p lab.Port) []expr.Any {
	return append(l4proto(p.Protocol),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: l4DstPort, Len: 2},
		equals(binaryutil.BigEndian.PutUint16(p.Number)))
}

// outInterface is: oifname NAME
func outInterface(name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, equals(padded)}
}

// ctInvalid is: ct state invalid
var ctInvalid = []expr.Any{
	&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
	&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
		Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitINVALID), Xor: make([]byte, 4)},
	&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
}
