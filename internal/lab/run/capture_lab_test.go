package run

import (
	"bytes"
	"encoding/binary"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/testutil"
)

// captureScenario is a client behind masquerade, and a server.
const captureScenario = `
name: capture
title: a client behind NAT
about: for tests
topology:
  nodes: [{name: client}, {name: gateway, forward: true}, {name: server}]
  links:
    - - {node: client, address: 198.18.0.2/24}
      - {node: gateway, address: 198.18.0.1/24}
    - - {node: gateway, address: 198.19.0.1/24}
      - {node: server, address: 198.19.0.2/24}
  server: {node: server, port: 80}
stages:
  - name: nat
    about: SNAT
    url: http://198.19.0.2/
    nat: [{node: gateway, masquerade: {toward: server, fully_random: true}}]
load: {from: client, requests: 1, concurrency: 1, timeout: 2s}
expect:
  complete: nat
`

func capturedLab(t *testing.T) *build.Lab {
	t.Helper()
	testutil.NeedRoot(t)
	s, err := lab.Parse("capture.yaml", []byte(captureScenario))
	if err != nil {
		t.Fatal(err)
	}
	l, err := build.Up(t.Context(), s, build.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.SetNAT(t.Context(), s.Stages[0].NAT); err != nil {
		t.Fatal(err)
	}
	return l
}

// echo answers datagrams in the server, until the test ends.
func echo(t *testing.T, l *build.Lab) {
	t.Helper()
	var conn net.PacketConn
	err := l.Node("server").Netns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp4", "198.19.0.2:9000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(b[:n], from)
		}
	}()
}

// exchange sends numbered datagrams from several sockets of the client. Each waits for the
// answer to the one before, unless that is lost, so that no queue overflows.
func exchange(t *testing.T, l *build.Lab, sockets, each, size int, lost func(number int) bool) {
	t.Helper()
	payload := make([]byte, size)
	for s := range sockets {
		var conn net.Conn
		err := l.Node("client").Netns.Do(func() (err error) {
			conn, err = net.Dial("udp4", "198.19.0.2:9000")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range each {
			binary.BigEndian.PutUint32(payload, uint32(s*each+i))
			if _, err := conn.Write(payload); err != nil {
				t.Fatal(err)
			}
			if lost(s*each + i) {
				continue
			}
			conn.SetReadDeadline(time.Now().Add(testutil.Patience(time.Minute)))
			if _, err := conn.Read(make([]byte, 2048)); err != nil {
				t.Fatalf("the answer to datagram %d: %v", s*each+i, err)
			}
		}
		conn.Close()
	}
}

func none(int) bool { return false }

func startOf(t *testing.T, l *build.Lab, node string, path string, o CaptureOptions, interfaces ...string) *capture {
	t.Helper()
	c, err := startCapture(l.Node(node).Netns, lab.Capture{Interfaces: interfaces, File: path}, o, DefaultRingBytes, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func endOf(t *testing.T, c *capture) lab.Capture {
	t.Helper()
	r := c.end()
	if r.Error != "" {
		t.Fatal(r.Error)
	}
	return r
}

func nft(t *testing.T, l *build.Lab, node string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	err := l.Node(node).Netns.Do(func() error {
		cmd := exec.Command("nft", args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("nft %s: %v: %s", args, err, &out)
	}
	return out.String()
}
