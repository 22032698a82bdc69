package simulate

import (
	"testing"
	"time"
)

func sourceCase(servers ...Servers) Config {
	retries := 5
	linear := 0
	hurry := Duration{}
	return Config{
		Seed: 1, Duration: Duration{time.Hour},
		Clients: []Clients{{Name: "partner", Hosts: 20, Clock: Clock{Offset: OffsetUptime},
			SYN: SYN{Retries: &retries, Linear: &linear, First: Duration{3 * time.Second}, AfterACK: &hurry, Timeout: Duration{2 * time.Second}}}},
		Connection: Connection{Duration: Duration{20 * time.Millisecond}},
		Balancer:   &Balancer{},
		Servers:    servers,
	}
}

func BenchmarkDay(b *testing.B) {
	c := sourceCase(Servers{Name: "old", Count: 4, Kernel: KernelWheel})
	c.Arrivals = &Arrivals{Rate: 1000}
	for b.Loop() {
		r, err := Run(b.Context(), c, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(r.Totals.Connections)/float64(b.N), "ns/conn")
		b.Logf("%+v\n%+v\n%+v %v", r.Totals, r.Servers, r.Incidents, r.ConnectDelay)
	}
}
