package natrules

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// message is one of a transaction.
type message struct {
	kind   int // NFT_MSG_*
	family uint8
	flags  netlink.HeaderFlags
	body   []byte
}

// errConcurrent: the rule set is no longer the one that the transaction was made for.
var errConcurrent = errors.New("another program changed the rules meanwhile")

// commit makes all of a transaction, or nothing, and only while the rule set is
// still of that generation (NFNL_BATCH_GENID). The last message is acknowledged
// when the transaction is in force.
func (c conn) commit(generation uint32, messages []message) error {
	subsystem := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES)
	batch := []netlink.Message{{
		Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request},
		Data:   appendU32(subsystem[:4:4], nfnlBatchGenID, generation),
	}}
	for i, m := range messages {
		flags := netlink.Request | m.flags
		if i == len(messages)-1 {
			flags |= netlink.Acknowledge
		}
		batch = append(batch, netlink.Message{
			Header: netlink.Header{Type: nftType(m.kind), Flags: flags},
			Data:   append(header(m.family), m.body...),
		})
	}
	batch = append(batch, netlink.Message{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}, Data: subsystem})
	if _, err := c.SendMessages(batch); err != nil {
		return fmt.Errorf("send the transaction: %w", err)
	}
	_, err := c.Receive() // the acknowledgement, or what was refused
	if errors.Is(err, unix.ERESTART) || errors.Is(err, unix.EAGAIN) {
		return errConcurrent
	}
	return err
}
