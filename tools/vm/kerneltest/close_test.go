package kerneltest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/testutil"
)

// TestWhoClosedFirst: an entry in TIME_WAIT shows whose FIN was the first, which is where
// TIME_WAIT of the connection is.
func TestWhoClosedFirst(t *testing.T) {
	n := newNodes(t)
	testutil.Nft(t, n.router, "table ip t { chain p { type nat hook postrouting priority 100; oifname \"far\" masquerade; }; }\n")
	for _, clientFirst := range []bool{true, false} {
		closeInTurn(t, n, clientFirst)
		var e conntrack.Entry
		deadline := time.Now().Add(testutil.Patience(time.Minute))
		for e.TCPState != conntrack.TCPTimeWait {
			if time.Now().After(deadline) {
				t.Fatalf("no entry in TIME_WAIT: %+v", e)
			}
			_, err := dump.Each(t.Context(), n.router, nil, func(one *conntrack.Entry) error { e = one.Clone(); return nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		if e.ClientClosed != clientFirst {
			t.Errorf("the client closed first: %v, want %v", e.ClientClosed, clientFirst)
		}
		testutil.Run(t, n.router, "", "conntrack", "-F")
	}
}

// closeInTurn makes a connection that one end closes when it has the other's FIN.
func closeInTurn(t *testing.T, n nodes, clientFirst bool) {
	t.Helper()
	var listener net.Listener
	testutil.Inside(t, n.server, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(serverA, port).String())
		return err
	})
	defer listener.Close()
	var client net.Conn
	testutil.Inside(t, n.client, func() (err error) {
		client, err = net.Dial("tcp", listener.Addr().String())
		return err
	})
	server, err := listener.Accept()
	if err != nil {
		client.Close()
		t.Fatal(err)
	}
	first, second := server, client
	if clientFirst {
		first, second = client, server
	}
	err = first.Close()
	_, readErr := io.Copy(io.Discard, second)
	if err = errors.Join(err, readErr, second.Close()); err != nil {
		t.Fatal(err)
	}
}
