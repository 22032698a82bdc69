package behaviour

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// most is the limit in the file.
const most = 5

// upTo makes flows of one host until one is lost, and returns how many there were.
func (p *Play) upTo(from end, bound int) (int, error) {
	for n := range bound {
		if _, err := p.both(from.port(4000+uint16(n)), outsideX); Lost(err) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
	return bound, nil
}

func perSource(p *Play) (Outcome, error) {
	if err := p.short(2 * time.Second); err != nil {
		return "", err
	}
	for _, host := range []end{insideA, insideB} {
		n, err := p.upTo(host, most+3)
		if err != nil || n != most {
			return Outcome(fmt.Sprintf("%d flows of %v", n, host.Addr())), err
		}
	}
	if _, err := p.both(insideA, outsideX); err != nil {
		return "", fmt.Errorf("a flow from before the limit was reached: %w", err)
	}
	if err := p.Pass(2500 * time.Millisecond); err != nil {
		return "", err
	}
	n, err := p.upTo(insideA, most+3)
	return yes(n == most, "limited, others are not touched, and free again after it", Outcome(fmt.Sprintf("%d flows after the first have ended", n))), err
}

func otherLimit(p *Play) (Outcome, error) {
	n, err := p.upTo(insideA, most+3)
	return Outcome(fmt.Sprint(n)), err
}

// insideOnly has a client outside make more flows than a host inside may, to what is
// forwarded.
func insideOnly(p *Play) (Outcome, error) {
	server := at(A, "192.168.0.2:80")
	for n := range uint16(most + 3) {
		came, err := p.in(outsideX.port(6000+n), forwarded, server)
		if err != nil || !came {
			return Outcome(fmt.Sprintf("a client outside has %d", n)), err
		}
	}
	n, err := p.upTo(insideA, most+3)
	return yes(n == most, "inside only", Outcome(fmt.Sprintf("%d flows of the server after that", n))), err
}

// perSourceAnyProtocol takes four of five by UDP, the last by an echo, and finds
// none left for TCP.
func perSourceAnyProtocol(p *Play) (Outcome, error) {
	n, err := p.upTo(insideA, most-1)
	if err != nil || n != most-1 {
		return Outcome(fmt.Sprintf("%d flows", n)), err
	}
	syn := frame.IP{Source: insideA.Addr(), Destination: outsideX.Addr(), Protocol: unix.IPPROTO_TCP}.Append(nil,
		frame.AppendTCP(nil, frame.Tuple{Src: insideA.AddrPort, Dst: outsideX.AddrPort}, frame.TCP{Flags: frame.SYN, Window: 1000}, nil))
	if _, err := p.Exchange(A, X, ping(insideA.Addr(), outsideX.Addr(), 77, 1).bytes()); err != nil {
		return "", err
	}
	_, err = p.Exchange(A, X, syn)
	if Lost(err) {
		return "limited over all protocols", nil
	}
	return "limited for each protocol", err
}

// fifth lets one more host ask for a port where all are given, and gives what
// comes anywhere.
func (p *Play) fifth() (Arrivals, error) {
	if err := p.exhaust(outsideX, 0); err != nil {
		return nil, err
	}
	return p.Send(insideHost(4, 0).host, UDPPacket(insideHost(4, 4000).AddrPort, outsideX.AddrPort, ""))
}

func exhaustedDrop(p *Play) (Outcome, error) {
	arrivals, err := p.fifth()
	return yes(len(arrivals.At(X)) == 0, "dropped", Outcome("arrived: "+arrivals.String())), err
}

func exhaustedAnswer(p *Play) (Outcome, error) {
	arrivals, err := p.fifth()
	for i := range arrivals {
		if f := &arrivals[i].Frame; arrivals[i].At == insideHost(4, 0).host && f.ICMPError() && f.ICMP.Type == 3 && f.ICMP.Code == 1 {
			return "answered", err
		}
	}
	return "not answered", err
}

func exhaustedKeeps(p *Play) (Outcome, error) {
	if _, err := p.fifth(); err != nil {
		return "", err
	}
	for n := range 4 {
		mapped, err := p.both(insideHost(n, 4000), outsideX)
		if err != nil {
			return Outcome(fmt.Sprintf("%v is gone", insideHost(n, 4000))), nil
		}
		if mapped.Port() < 5000 || mapped.Port() > 5003 {
			return "changed", nil
		}
	}
	return "kept", nil
}
