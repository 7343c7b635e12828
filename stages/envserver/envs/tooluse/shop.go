package tooluse

import (
	"fmt"
	"maps"
	"slices"
)

// shop is the state that the tools look at and change.
type shop struct {
	Products []product `json:"products"`
	Orders   []order   `json:"orders"`
	Balance  int       `json:"balance"` // what the customer has, in coins
	City     string    `json:"city"`
	Delivery string    `json:"delivery"` // "standard" or "express"
}

type product struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Colour string `json:"colour"`
	Price  int    `json:"price"` // coins
	Stock  int    `json:"stock"`
}

type order struct {
	ID       string `json:"id"`
	Product  string `json:"product"` // ID
	Quantity int    `json:"quantity"`
	Status   string `json:"status"` // "open", "shipped" or "cancelled"
}

// goal is a part of what the customer asks for.
type goal struct {
	// Do is "buy", "cheapest", "cancel" or "deliver".
	Do       string `json:"do"`
	Product  string `json:"product,omitempty"` // ID
	Quantity int    `json:"quantity,omitempty"`
	City     string `json:"city,omitempty"`
	Delivery string `json:"delivery,omitempty"`
}

// copied is the shop with slices of its own.
func (s shop) copied() shop {
	s.Products, s.Orders = slices.Clone(s.Products), slices.Clone(s.Orders)
	return s
}

func (s *shop) product(id string) *product {
	for i := range s.Products {
		if s.Products[i].ID == id {
			return &s.Products[i]
		}
	}
	return nil
}

// buy orders a product, or says why not.
func (s *shop) buy(id string, quantity int) (order, error) {
	p := s.product(id)
	switch {
	case p == nil:
		return order{}, fmt.Errorf("there is no product %.40q; SearchProducts lists them", id)
	case quantity < 1:
		return order{}, fmt.Errorf("quantity %d: want at least 1", quantity)
	case quantity > p.Stock:
		return order{}, fmt.Errorf("only %d of %s are in stock", p.Stock, p.ID)
	case quantity*p.Price > s.Balance:
		return order{}, fmt.Errorf("%d × %d coins are more than the balance of %d", quantity, p.Price, s.Balance)
	}
	p.Stock -= quantity
	s.Balance -= quantity * p.Price
	o := order{ID: fmt.Sprintf("O%d", len(s.Orders)+1), Product: id, Quantity: quantity, Status: "open"}
	s.Orders = append(s.Orders, o)
	return o, nil
}

// cancel takes an open order back, or says why not.
func (s *shop) cancel(id string) error {
	for i := range s.Orders {
		o := &s.Orders[i]
		if o.ID != id {
			continue
		}
		if o.Status != "open" {
			return fmt.Errorf("order %s is %s and cannot be cancelled", id, o.Status)
		}
		p := s.product(o.Product)
		o.Status = "cancelled"
		p.Stock += o.Quantity
		s.Balance += o.Quantity * p.Price
		return nil
	}
	return fmt.Errorf("there is no order %.40q; ListOrders has them", id)
}

// open is how many of each product are on order and have not been shipped.
func (s *shop) open() map[string]int {
	quantities := map[string]int{}
	for _, o := range s.Orders {
		if o.Status == "open" {
			quantities[o.Product] += o.Quantity
		}
	}
	return quantities
}

// do reaches a goal, as it is meant.
func (s *shop) do(g goal) error {
	switch g.Do {
	case "buy", "cheapest":
		_, err := s.buy(g.Product, g.Quantity)
		return err
	case "cancel":
		for _, o := range s.Orders {
			if o.Product == g.Product && o.Status == "open" {
				return s.cancel(o.ID)
			}
		}
		return fmt.Errorf("no open order of %q", g.Product)
	case "deliver":
		s.City, s.Delivery = g.City, g.Delivery
		return nil
	}
	return fmt.Errorf("no goal is called %q", g.Do)
}

// same reports whether two shops are in the same state: what is open of each product, and where it goes. How an order came about
// does not count, and what was ordered and cancelled again is as if it had not been.
func same(a, b *shop) bool {
	return maps.Equal(a.open(), b.open()) && a.City == b.City && a.Delivery == b.Delivery && a.Balance == b.Balance
}

// met reports whether a goal is reached in a shop, given the shop in which all are.
func (g goal) met(now, want *shop) bool {
	if g.Do == "deliver" {
		return now.City == want.City && now.Delivery == want.Delivery
	}
	return now.open()[g.Product] == want.open()[g.Product]
}
