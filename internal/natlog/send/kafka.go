//go:build linux

package send

import (
	"context"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/natlog"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka produces JSON lines to a topic. Their key is the address of the translation, so that all that is about it is in
// one partition, in order.
type Kafka struct {
	client *kgo.Client
}

// kafkaTimeout is how long brokers may take for a batch.
const kafkaTimeout = 30 * time.Second

// NewKafka begins with no connection.
func NewKafka(brokers []string, topic string) (*Kafka, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic), kgo.ClientID("natkit"),
		kgo.MaxBufferedRecords(2*batchRecords),
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()))
	if err != nil {
		return nil, fmt.Errorf("send to Kafka: %w", err)
	}
	return &Kafka{client: client}, nil
}

// Send returns when all in-sync replicas have the records.
func (k *Kafka) Send(ctx context.Context, records []natlog.Record) (int, error) {
	// Not kgo.RecordDeliveryTimeout: that counts from a record's own time, and what waited in a spool is older.
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	produced := make([]*kgo.Record, len(records))
	for i := range records {
		r := &records[i]
		line := r.AppendJSON(nil)
		produced[i] = &kgo.Record{Value: line[:len(line)-1], Timestamp: r.Time}
		switch {
		case r.NAT.IsValid():
			produced[i].Key = []byte(r.NAT.Addr().String())
		case r.IsSession():
			produced[i].Key = []byte(r.Dst.Addr().String())
		}
	}
	failed := map[*kgo.Record]error{}
	for _, result := range k.client.ProduceSync(ctx, produced...) {
		if result.Err != nil {
			failed[result.Record] = result.Err
		}
	}
	for i, r := range produced {
		if err := failed[r]; err != nil {
			return i, err // those behind it that were taken are sent twice
		}
	}
	return len(records), nil
}

// Close ends the connections.
func (k *Kafka) Close() error {
	k.client.Close()
	return nil
}
