package tooluse

import (
	"context"
	"encoding/json"

	"github.com/prl-project/prl/stages/envserver/env"
)

// SearchArgs are the arguments of the tool SearchProducts.
type SearchArgs struct {
	_        struct{} `tool:"List the products of the shop that fit, with id, price in coins and stock."`
	Kind     string   `json:"kind,omitempty" jsonschema:"only products of this kind, such as mug"`
	Colour   string   `json:"colour,omitempty" jsonschema:"only products of this colour"`
	MaxPrice int      `json:"max_price,omitempty" jsonschema:"only products of at most this price"`
}

// SearchProducts is the tool.
func (e *episode) SearchProducts(_ context.Context, args SearchArgs) (string, error) {
	e.calls++
	found := []product{}
	for _, p := range e.shop.Products {
		if (args.Kind == "" || p.Kind == args.Kind) && (args.Colour == "" || p.Colour == args.Colour) &&
			(args.MaxPrice == 0 || p.Price <= args.MaxPrice) {
			found = append(found, p)
		}
	}
	return marshal(found)
}

// OrderArgs are the arguments of the tool PlaceOrder.
type OrderArgs struct {
	_        struct{} `tool:"Order a product. It is paid from the balance at once."`
	Product  string   `json:"product" jsonschema:"id of the product"`
	Quantity int      `json:"quantity" jsonschema:"how many, at least 1"`
}

// PlaceOrder is the tool.
func (e *episode) PlaceOrder(_ context.Context, args OrderArgs) (string, error) {
	e.calls++
	o, err := e.shop.buy(args.Product, args.Quantity)
	if err != nil {
		return "", e.refuse(err)
	}
	return marshal(o)
}

// ListArgs are the arguments of the tool ListOrders.
type ListArgs struct {
	_      struct{} `tool:"List the customer's orders."`
	Status string   `json:"status,omitempty" enum:"open,shipped,cancelled" jsonschema:"only orders with this status"`
}

// ListOrders is the tool.
func (e *episode) ListOrders(_ context.Context, args ListArgs) (string, error) {
	e.calls++
	found := []order{}
	for _, o := range e.shop.Orders {
		if args.Status == "" || o.Status == args.Status {
			found = append(found, o)
		}
	}
	return marshal(found)
}

// CancelArgs are the arguments of the tool CancelOrder.
type CancelArgs struct {
	_     struct{} `tool:"Cancel an open order. Its price goes back to the balance."`
	Order string   `json:"order" jsonschema:"id of the order"`
}

// CancelOrder is the tool.
func (e *episode) CancelOrder(_ context.Context, args CancelArgs) (string, error) {
	e.calls++
	if err := e.shop.cancel(args.Order); err != nil {
		return "", e.refuse(err)
	}
	return "cancelled", nil
}

// DeliveryArgs are the arguments of the tool SetDelivery.
type DeliveryArgs struct {
	_       struct{} `tool:"Say where orders go, and how."`
	City    string   `json:"city"`
	Express bool     `json:"express" jsonschema:"true for express, false for standard delivery"`
}

// SetDelivery is the tool.
func (e *episode) SetDelivery(_ context.Context, args DeliveryArgs) (string, error) {
	e.calls++
	e.shop.City, e.shop.Delivery = args.City, "standard"
	if args.Express {
		e.shop.Delivery = "express"
	}
	return "orders go to " + args.City + " by " + e.shop.Delivery + " delivery", nil
}

// AccountArgs are the arguments of the tool ShowAccount: none.
type AccountArgs struct {
	_ struct{} `tool:"Show the customer's balance, city and kind of delivery."`
}

// ShowAccount is the tool.
func (e *episode) ShowAccount(context.Context, AccountArgs) (string, error) {
	e.calls++
	return marshal(map[string]any{"balance": e.shop.Balance, "city": e.shop.City, "delivery": e.shop.Delivery})
}

// refuse counts what the shop does not do and says it to the policy.
func (e *episode) refuse(err error) error {
	e.refused++
	return env.Refuse("%s", err)
}

func marshal(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}
