package simulate

import "time"

// sourceCase is many clients behind one address of a firewall that gives its ports in
// turn, a balancer, and servers that close first. Clients give up before they would
// repeat a SYN.
func sourceCase(servers ...Servers) Config {
	retries, linear := 5, 0
	return Config{
		Seed: 1, Duration: Duration{time.Hour},
		Clients: []Clients{{Name: "partner", Hosts: 20, Clock: Clock{Offset: OffsetUptime},
			SYN: SYN{Retries: &retries, Linear: &linear, First: Duration{3 * time.Second}, AfterACK: &Duration{}, Timeout: Duration{2 * time.Second}}}},
		Connection: Connection{Duration: Duration{20 * time.Millisecond}},
		Balancer:   &Balancer{},
		Servers:    servers,
	}
}
